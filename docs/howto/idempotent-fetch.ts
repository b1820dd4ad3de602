// fetch() with an idempotency key: one key per call, kept over its retries. For browsers and Node.

export interface RetryPolicy {
  attempts?: number; // the first one included
  seconds?: number; // no attempt begins later than so many seconds after the first
  attemptSeconds?: number; // an attempt without a whole answer is given up after so many
  backoff?: number; // the longest pause after the first attempt, in seconds; it doubles each time
  maxBackoff?: number;
  statuses?: number[]; // are retried where no problem says otherwise
}

const SAFE = ["GET", "HEAD", "OPTIONS", "TRACE"];

export async function idempotentFetch(
  url: string | URL,
  init: RequestInit = {},
  policy: RetryPolicy = {},
): Promise<Response> {
  const { attempts = 20, seconds = 120, attemptSeconds = 30 } = policy;
  const { backoff = 0.25, maxBackoff = 10, statuses = [408, 425, 429, 502, 503, 504] } = policy;
  const method = (init.method ?? "GET").toUpperCase();
  const safe = SAFE.includes(method);
  const headers = new Headers(init.headers);
  if (!safe && !headers.has("Idempotency-Key")) {
    headers.set("Idempotency-Key", `"${crypto.randomUUID()}"`);
  }
  // Cannot be sent again: a second reading fails, or gives an empty body.
  const streamed = init.body instanceof ReadableStream || Symbol.asyncIterator in Object(init.body);
  const body = streamed ? null : (init.body ?? null);
  new Request(url, { ...init, method, headers, body }); // throws what no retry can mend
  const until = performance.now() + seconds * 1000;

  for (let attempt = 1; ; attempt++) {
    let pause = Math.random() * Math.min(backoff * 2 ** (attempt - 1), maxBackoff);
    const last = () => streamed || attempt >= attempts || performance.now() + pause * 1000 > until;
    const limit = new AbortController();
    const timer = setTimeout(() => limit.abort(new Error("no answer")), attemptSeconds * 1000);
    const signal = init.signal ? AbortSignal.any([init.signal, limit.signal]) : limit.signal;
    try {
      const response = await fetch(url, { ...init, method, headers, signal });
      // A safe request, or an answer that is not kept, may be a long download: it is not read here.
      const kept = !safe && response.headers.get("Idempotency-Stored") !== "false";
      const text = kept ? await response.clone().text() : "";
      pause += retryAfter(response);
      if (!mayRetry(response, text, statuses) || last()) return response;
      await response.body?.cancel();
    } catch (error) {
      if (init.signal?.aborted || last()) throw error;
    } finally {
      clearTimeout(timer);
    }
    await sleep(pause, init.signal);
  }
}

async function sleep(seconds: number, signal?: AbortSignal | null): Promise<void> {
  signal?.throwIfAborted();
  await new Promise<void>((resolve) => {
    const end = () => (clearTimeout(timer), signal?.removeEventListener("abort", end), resolve());
    const timer = setTimeout(end, seconds * 1000);
    signal?.addEventListener("abort", end);
  });
  signal?.throwIfAborted();
}

function mayRetry(response: Response, text: string, statuses: number[]): boolean {
  if (response.ok || response.headers.get("Idempotency-Replayed") === "true") return false;
  if (response.headers.get("Idempotency-Stored") === "false") return false; // it may run again
  try {
    const { code, retryable } = JSON.parse(text);
    if (typeof code === "string" && typeof retryable === "boolean") return retryable;
  } catch {} // not a problem: the status decides
  return statuses.includes(response.status);
}

function retryAfter(response: Response): number {
  const field = response.headers.get("Retry-After") ?? "";
  const seconds = /^\d+$/.test(field) ? Number(field) : (Date.parse(field) - Date.now()) / 1000;
  return Math.max(0, seconds || 0);
}
