// Publishes, tails over both transports and works until a line comes on standard input; then everything is compared.
// Prints the number of records published so far, a line each time.
import assert from "node:assert/strict";
import { createInterface } from "node:readline";
import { Topics } from "../dist/index.js";

const client = new Topics(process.argv[2]);
let published = 0;
let stopping = false;
let complete = false;
const lines = createInterface({ input: process.stdin });
lines.once("line", () => (stopping = true));

await client.configure("chaos", { durability: "fsync" });
await client.configure("chaos-q", { type: "queue", durability: "fsync" });

async function publish() {
  while (!stopping) {
    const records = [0, 1, 2, 3, 4].map((n) => ({ data: published + n }));
    await client.publishAll("chaos", records);
    await client.publishAll("chaos-q", records);
    published += 5;
    console.log(published);
  }
  complete = true;
}

// Reads with a cursor; after each hundred records, another tail goes on from it.
async function tail(transport) {
  const seen = [];
  while (!complete || seen.length < published) {
    const options = { transport, cursor: transport, heartbeatMs: 1000, commit: "manual" };
    const tailing = client.tail("chaos", options);
    const timer = setInterval(() => complete && seen.length >= published && tailing.close(), 50);
    let most = 100;
    for await (const record of tailing) {
      seen.push(record.data);
      if (--most === 0) break;
    }
    clearInterval(timer);
    await tailing.commit();
  }
  return seen;
}

const worked = new Set();
const onWarning = () => undefined;
const worker = client.worker("chaos-q", (job) => worked.add(job.data), { concurrency: 4, leaseMs: 2000, waitMs: 1000, onWarning });
const working = worker.run();
const [events, socket] = await Promise.all([tail("events"), tail("websocket"), publish()]);
while ((await client.state("chaos-q")).count > 0) await new Promise((resolve) => setTimeout(resolve, 100));
worker.stop();
await working;
lines.close();

const everything = Array.from({ length: published }, (_, n) => n);
const read = [];
for await (const record of client.read("chaos")) read.push(record.data);
assert.deepEqual(read, everything);
assert.deepEqual(events, everything);
assert.deepEqual(socket, everything);
assert.deepEqual([...worked].sort((a, b) => a - b), everything);
