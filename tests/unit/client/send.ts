// Sends a request for each line of the input, as that says, and prints a line about its result.

import { createInterface } from "node:readline";

import { idempotentFetch } from "../../../docs/howto/idempotent-fetch.ts";

for await (const line of createInterface({ input: process.stdin })) {
  const { url, streamed, generated, abortAfter, policy, ...init } = JSON.parse(line);
  if (streamed) Object.assign(init, { body: new Blob([init.body]).stream(), duplex: "half" });
  if (generated) Object.assign(init, { body: generate(init.body), duplex: "half" });
  if (abortAfter) init.signal = AbortSignal.timeout(abortAfter);
  try {
    const response = await idempotentFetch(url, init, policy);
    console.log(JSON.stringify([response.status, await response.text()]));
  } catch {
    console.log(init.signal?.aborted ? '[0, "aborted"]' : "null");
  }
}

async function* generate(body: string) {
  yield new TextEncoder().encode(body);
}
