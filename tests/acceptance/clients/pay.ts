// pay.ts <url> <authorization> <account> <first> <last>: prints each payment's number and status.

import { idempotentFetch } from "../../../docs/howto/idempotent-fetch.ts";

const [url, authorization, account, first, last] = process.argv.slice(2);
const headers = { Authorization: authorization, "Content-Type": "application/json" };
const policy = { attempts: 1000, seconds: 600, maxBackoff: 2 };
let next = Number(first);

async function work(): Promise<void> {
  while (next < Number(last)) {
    const number = next++;
    const body = JSON.stringify({ account, amount: 1, reference: `payment ${number}` });
    const response = await idempotentFetch(url, { method: "POST", headers, body }, policy);
    console.log(number, response.status);
  }
}

await Promise.all(Array.from({ length: 8 }, work));
