// Claims about the client with a real service at TOPICS_URL, and one that asks for the key TOPICS_KEY at TOPICS_KEYED_URL.
import assert from "node:assert/strict";
import { test } from "node:test";
import { CursorNotFound, GapError, NotAQueue, TopicNotFound, Topics, Unauthorized } from "../dist/index.js";

const client = new Topics(process.env.TOPICS_URL);
const keyed = new Topics(process.env.TOPICS_KEYED_URL, { token: process.env.TOPICS_KEY });
const counted = (n) => Array.from({ length: n }, (_, each) => ({ data: each }));

async function all(items) {
  const found = [];
  for await (const item of items) found.push(item);
  return found;
}

/** The data of the first record, which may still be on its way. */
async function first(topic) {
  const tail = client.tail(topic);
  const { value } = await tail.next();
  tail.close();
  return value.data;
}

async function taken(tail, count) {
  const found = [];
  while (found.length < count) found.push((await tail.next()).value);
  return found;
}

test("publish and read", async () => {
  await assert.rejects(client.state("read"), TopicNotFound);
  const first = await client.publish("read", { n: 0 }, { tag: "a", meta: { k: 1 }, config: { durability: "fsync" } });
  assert.deepEqual([first.created, first.firstSeq], [true, 1]);
  for (const deduped of [false, true]) {
    const done = await client.publishAll("read", counted(2500), { idempotencyKey: "load" });
    assert.deepEqual([done.count, done.lastSeq, done.deduped], [2500, 2501, deduped]);
  }
  const reading = client.read("read");
  const seen = await all(reading);
  assert.deepEqual(seen.map((record) => record.seq), Array.from({ length: 2501 }, (_, n) => n + 1));
  assert.deepEqual([seen[0].data, seen[0].tag, seen[0].meta], [{ n: 0 }, "a", { k: 1 }]);
  assert.deepEqual([reading.seq, reading.headSeq], [2501, 2501]);
  const publisher = client.publisher("read", { batchRecords: 100 });
  for (let n = 0; n < 250; n += 1) await publisher.send(n);
  await publisher.close();
  assert.equal(publisher.published, 250);
  assert.deepEqual((await all(reading)).length, 250);
  assert.equal(await client.deleteRecords("read", { beforeSeq: 2751 }), 2750);
});

test("a gap is thrown or given", async () => {
  await client.configure("gap", { capRecords: 5 });
  await client.publishAll("gap", counted(20), { batchRecords: 1 });
  const reading = client.read("gap");
  await assert.rejects(reading.next(), GapError);
  assert.equal((await reading.next()).value.seq, 16);
  const [gap, ...records] = await all(client.read("gap", { gaps: "yield" }));
  assert.deepEqual([gap.kind, gap.firstSeq, gap.lastSeq, gap.reason], ["gap", 1, 15, "cap"]);
  assert.equal(records.length, 5);
});

for (const transport of ["events", "websocket"]) {
  test(`a tail over ${transport} goes on where its cursor is, and tells of deleted topics`, async () => {
    const [a, b] = [`a-${transport}`, `b-${transport}`];
    for (const topic of [a, b]) await keyed.publishAll(topic, counted(3));
    const options = { transport, cursor: "reader", heartbeatMs: 1000 };
    const first = keyed.tail([a, b], options);
    const seen = await taken(first, 6);
    assert.deepEqual(seen.map(({ topic, seq }) => topic + seq).sort(), [a, b].flatMap((each) => [1, 2, 3].map((n) => each + n)));
    await first.commit();
    first.close();
    assert.equal((await keyed.cursor(a, "reader")).seq, 3);
    const second = keyed.tail([a, b], options);
    const next = second.next();
    await keyed.publish(b, "new");
    assert.deepEqual([(await next).value.topic, (await next).value.seq], [b, 4]);
    await keyed.deleteTopic(a);
    assert.deepEqual((await second.next()).value, { kind: "deleted", topic: a, seq: 3 });
    await keyed.deleteTopic(b);
    assert.deepEqual((await all(second)).map((item) => item.kind), ["deleted"]);
  });

  test(`a tail of a prefix over ${transport} takes topics as they are made`, async () => {
    const prefix = `prefix:${transport}:`;
    await client.publish(`${prefix}old`, "before");
    const tail = client.tail([], { prefix, fromSeq: "now", transport });
    await tail.begin();
    await client.publish(`${prefix}old`, "after");
    assert.deepEqual((await taken(tail, 1)).map((item) => [item.topic, item.data]), [[`${prefix}old`, "after"]]);
    await client.publish(`${prefix}new`, "first");
    assert.deepEqual((await taken(tail, 1)).map((item) => [item.topic, item.seq]), [[`${prefix}new`, 1]]);
    await client.deleteTopic(`${prefix}new`);
    assert.equal((await tail.next()).value.kind, "deleted");
    tail.close();
    assert.throws(() => client.tail([], { prefix, cursor: "c" }), TypeError);
  });

  test(`closing ends a tail over ${transport} that waits, and it can go on`, async () => {
    const topic = `closed-${transport}`;
    await client.publish(topic, 1);
    const tail = client.tail(topic, { transport });
    for await (const item of tail) {
      assert.equal(item.data, 1);
      setTimeout(() => tail.close(), 20);
    }
    await client.publish(topic, 2);
    assert.equal((await tail.next()).value.data, 2);
    tail.close();
  });

  test(`a tail over ${transport} needs the right key`, async () => {
    const other = new Topics(process.env.TOPICS_KEYED_URL, { token: "wrong" });
    await assert.rejects(other.tail("t", { transport }).next(), Unauthorized);
  });
}

test("a worker acks what is done and repeats what failed", async () => {
  await client.configure("work", { type: "queue" });
  await client.publishAll("work", counted(50));
  const seen = new Map();
  const failed = [];
  const handler = async (job) => {
    seen.set(job.data, (seen.get(job.data) ?? 0) + 1);
    if (job.data === 7 && job.deliveries === 1) throw new Error("once");
    if (job.data === 9) await new Promise((resolve) => setTimeout(resolve, 900)); // longer than its lease
    if (seen.size === 50 && seen.get(7) === 2) worker.stop();
  };
  const worker = client.worker("work", handler, {
    concurrency: 8,
    leaseMs: 600,
    backoff: () => 1200,
    onFailure: (job, error) => failed.push([job.data, error.message]),
  });
  await worker.run();
  assert.deepEqual([worker.done, worker.failed, failed], [50, 1, [[7, "once"]]]);
  assert.deepEqual([...seen.values()].sort(), [...Array(49).fill(1), 2]);
  assert.equal((await client.state("work")).count, 0);
});

test("a worker that stops gives back what is not finished in its grace", async () => {
  await client.configure("grace", { type: "queue" });
  await client.publish("grace", "job");
  let aborted = false;
  const handler = (job, signal) => {
    signal.addEventListener("abort", () => (aborted = true));
    worker.stop(10);
    return new Promise(() => undefined);
  };
  const worker = client.worker("grace", handler, { onWarning: () => undefined });
  await worker.run();
  assert.deepEqual([aborted, worker.done], [true, 0]);
  assert.equal((await client.state("grace")).queue.ready, 1);
});

test("administration", async () => {
  assert.equal((await client.configure("src", { ttlMs: 60_000 })).ttlMs, 60_000);
  assert.equal((await client.setRouter("r", { source: "src", dest: "dst" })).dest, "dst");
  assert.deepEqual((await all(client.routers({ source: "src" }))).map((each) => each.router), ["r"]);
  assert.equal((await client.router("r")).source, "src");
  await client.publish("src", "copied");
  assert.equal(await first("dst"), "copied");
  assert.ok(await client.deleteRouter("r"));
  assert.deepEqual((await all(client.topics("src"))).map((each) => each.topic), ["src"]);
  await client.setCursor("src", "c d/ä", 1);
  assert.deepEqual((await all(client.cursors("src"))).map((each) => [each.cursor, each.seq]), [["c d/ä", 1]]);
  assert.ok(await client.deleteCursor("src", "c d/ä"));
  await assert.rejects(client.cursor("src", "c d/ä"), CursorNotFound);
  await assert.rejects(client.claim("src", "n"), NotAQueue);
  await client.configure("adm", { type: "queue", max_deliveries: 1, dead_letter: "adm.dead" });
  await client.publish("adm", "job");
  const [job] = await client.claim("adm", "n", { leaseMs: 10_000 });
  assert.equal((await client.peek("adm")).jobs[0].state, "in_flight");
  assert.equal((await client.extend("adm", "n", [job], 5000)).extended, 1);
  assert.equal((await client.nack("adm", "n", [job])).nacked, 1);
  assert.deepEqual(await client.claim("adm", "n"), []); // it is a dead letter
  assert.equal(await first("adm.dead"), "job");
  await client.redrive("adm.dead", "adm");
  const [again] = await client.claim("adm", "n", { waitMs: 5000 });
  const none = await client.claim("adm", "n", { ack: [again] });
  assert.deepEqual([none.length, none.ack, none.nack], [0, { acked: 1, skipped: [] }, undefined]);
  assert.deepEqual((await client.ack("adm", "n", [again])).skipped, [again.seq]);
  assert.ok(await client.deleteTopic("src"));
  assert.ok(!(await client.deleteTopic("src")));
  assert.equal((await client.call("health", {})).status, "ok");
  assert.equal(typeof (await client.call("metrics", {})), "object");
  assert.match((await keyed.ticket("/v0/ws")).url, /ticket=/);
});
