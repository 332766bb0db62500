// Claims about parts of the client, with answers made here.
import assert from "node:assert/strict";
import { test } from "node:test";
import { ERRORS, Forbidden, OPERATIONS, Throttled, TopicFull, Topics, TopicsError, Unavailable } from "../dist/index.js";
import { EventLines } from "../dist/streams.js";

/** A client, and the requests it sent. `answers` are statuses and bodies, or errors of the network, in order. */
function scripted(answers, options = {}) {
  const asked = [];
  const fetch = async (url, { method, headers, body }) => {
    asked.push({ method, path: url.replace("http://t", ""), headers, body: body && JSON.parse(body), at: performance.now() });
    const answer = answers.shift();
    if (answer instanceof Error) throw answer;
    const [status, told, more = {}] = answer;
    return new Response(typeof told === "string" ? told : JSON.stringify(told), { status, headers: more });
  };
  return [new Topics("http://t/", { fetch, ...options }), asked];
}

const failure = (code, detail) => ({ error: { code, message: code, ...(detail && { detail }) } });
const appended = (first, count) => ({ first_seq: first, last_seq: first + count - 1, count, created: false, deduped: false });
const counted = (n) => Array.from({ length: n }, (_, each) => ({ data: each }));

test("a batch is repeated with its key, after the pause that the service asks for", async () => {
  const [client, asked] = scripted([
    [503, failure("not_ready"), { "Retry-After": "0.2" }],
    [429, failure("throttled", { retry_after_ms: 100 }), { "Retry-After": "9" }],
    new TypeError("fetch failed"),
    [502, "<html>"],
    [200, appended(1, 1)],
  ]);
  const done = await client.publish("t", 1, { tag: "x" });
  assert.deepEqual([done.firstSeq, done.count], [1, 1]);
  assert.equal(new Set(asked.map(({ body }) => body.idempotency_key)).size, 1);
  assert.equal(asked[0].body.idempotency_key, done.idempotencyKey);
  assert.deepEqual(asked[4].body.records, [{ data: 1, tag: "x" }]);
  const pauses = asked.slice(1).map(({ at }, n) => at - asked[n].at);
  assert.ok(pauses[0] >= 199 && pauses[1] >= 99, String(pauses));
});

test("batches have keys of their own, and keep to their bounds", async () => {
  const [client, asked] = scripted([[200, appended(1, 2)], [200, appended(3, 2)], [200, appended(5, 1)]]);
  const done = await client.publishAll("t", counted(5), { batchRecords: 2, idempotencyKey: "k" });
  assert.deepEqual([done.firstSeq, done.lastSeq, done.count], [1, 5, 5]);
  assert.deepEqual(asked.map(({ body }) => body.idempotency_key), ["k", "k:1", "k:2"]);
  const [small, sent] = scripted([[200, appended(1, 1)], [200, appended(2, 1)]]);
  await small.publishAll("t", [{ data: "ä".repeat(10) }, { data: "b" }], { batchBytes: 30 });
  assert.deepEqual(sent.map(({ body }) => body.records.length), [1, 1]);
  await assert.rejects(client.publishAll("t", []), TypeError);
});

test("a publisher keeps a batch that failed, and its key", async () => {
  const [client, asked] = scripted([[422, failure("topic_full")], [200, appended(1, 2)]], { patienceMs: 10 });
  const publisher = client.publisher("t", { batchRecords: 2 });
  await publisher.send(1);
  await publisher.send(2);
  const error = await publisher.send(3).catch((each) => each);
  assert.ok(error instanceof TopicFull);
  assert.equal(error.idempotencyKey, asked[0].body.idempotency_key);
  await publisher.send(4);
  const [again] = await Promise.allSettled([publisher.flush()]);
  assert.equal(asked[1].body.idempotency_key, asked[0].body.idempotency_key);
  assert.equal(publisher.published, 2);
  assert.equal(again.status, "rejected"); // the script is over
});

test("what may not happen twice is repeated only if it was not done", async () => {
  const [client, asked] = scripted([
    [503, failure("not_ready", { outcome: "not_done" })],
    [503, failure("not_ready", { outcome: "unknown" })],
  ]);
  await assert.rejects(client.redrive("dead", "jobs"), { code: "not_ready", outcome: "unknown" });
  assert.equal(asked.length, 2);
});

test("patience ends", async () => {
  const [client, asked] = scripted(Array(50).fill([429, failure("throttled")]), { patienceMs: 120 });
  await assert.rejects(client.state("t"), Throttled);
  assert.ok(asked.length > 1 && asked.length < 6);
});

test("each code has a class, unknown ones and those of proxies too", async () => {
  assert.equal(new Set(Object.values(ERRORS)).size, Object.keys(ERRORS).length);
  const [client] = scripted([[403, failure("forbidden", { a: 1 })], [418, failure("teapot")], [418, "tea"]]);
  await assert.rejects(client.state("t"), (error) => error instanceof Forbidden && error.name === "Forbidden" && error.detail.a === 1);
  await assert.rejects(client.state("t"), (error) => error.constructor === TopicsError && error.code === "teapot");
  await assert.rejects(client.state("t"), (error) => error.code === "" && error.status === 418);
});

test("a connection that was not made did nothing", async () => {
  const refused = Object.assign(new TypeError("fetch failed"), { cause: { code: "ECONNREFUSED", message: "refused" } });
  const [client] = scripted([refused, new TypeError("reset")], { patienceMs: 0 });
  await assert.rejects(client.state("t"), (error) => error instanceof Unavailable && error.outcome === "not_done");
  await assert.rejects(client.state("t"), (error) => error instanceof Unavailable && error.outcome === "unknown");
});

test("names and keys are sent as they are", async () => {
  const [client, asked] = scripted([[200, {}], [200, {}]], { key: "s3cret" });
  await client.cursor("a:b", "c d/ä");
  await client.call("list_topics", { query: { prefix: "a b", page_size: 5 } });
  assert.deepEqual(asked.map(({ path }) => path), ["/v0/topics/a%3Ab/cursors/c%20d%2F%C3%A4", "/v0/topics?prefix=a+b&page_size=5"]);
  assert.equal(asked[0].headers.authorization, "Bearer s3cret");
  assert.deepEqual(OPERATIONS.get_cursor, ["GET", "/v0/topics/{topic}/cursors/{cursor}"]);
});

test("events are found in whatever pieces they come", () => {
  const text = "retry: 2000\n\n: hb 1\n\nid: a\nevent: record\ndata: {\"x\":1}\n\nevent: error\r\ndata: {}\r\n\r\n";
  const lines = new EventLines();
  const found = [...text].flatMap((letter) => lines.feed(letter));
  assert.deepEqual(found, [
    { event: "record", id: "a", data: '{"x":1}' },
    { event: "error", id: undefined, data: "{}" },
  ]);
});

/** The stream of a session: the frames, then the end. */
function stream(...frames) {
  const text = frames.map(([event, told, id]) => `${id ? `id: ${id}\n` : ""}event: ${event}\ndata: ${JSON.stringify(told)}\n\n`).join("");
  return [200, text];
}

const watch = (from_seq) => [200, { stream_url: "/v0/watch/w", topics: { t: { from_seq } } }];
const record = (seq) => ["record", { topic: "t", records: [{ $seq: seq, $ts: 0, data: seq }], from_seq: seq - 1, to_seq: seq }, `i${seq}`];

test("a tail resumes with the last id, and makes a new session when the old one is gone", async () => {
  const [client, asked] = scripted([
    watch(0),
    stream(record(1)),
    stream(record(1), record(2), ["error", { code: 410, error: "gone" }]),
    watch(2),
    stream(record(3)),
  ]);
  const tail = client.tail("t");
  const seen = [];
  for await (const item of tail) if (seen.push(item.data) === 3) break;
  assert.deepEqual(seen, [1, 2, 3]);
  assert.deepEqual(asked.map(({ headers }) => headers["last-event-id"]), [undefined, undefined, "i1", undefined, undefined]);
  assert.deepEqual(asked[3].body.topics, { t: { from_seq: 2 } });
});

test("a stream that broke before its first frame is not trusted", async () => {
  const [client, asked] = scripted([watch(0), stream(), watch(0), stream(record(1))]);
  assert.equal((await client.tail("t").next()).value.seq, 1);
  assert.deepEqual(asked.map(({ method }) => method), ["POST", "GET", "POST", "GET"]);
});

test("a tail commits what its caller has finished", async () => {
  const two = ["record", { topic: "t", records: [1, 2].map((seq) => ({ $seq: seq, $ts: 0, data: seq })), from_seq: 0, to_seq: 2 }, "i2"];
  const [client, asked] = scripted([[404, failure("cursor_not_found")], watch(0), stream(two), [200, {}], stream(record(3))]);
  const tail = client.tail("t", { cursor: "c" });
  for (const seq of [1, 2, 3]) {
    const committed = asked.filter(({ method }) => method === "PUT").length;
    assert.equal(committed, 0);
    assert.equal((await tail.next()).value.seq, seq);
  }
  const [put] = asked.filter(({ method }) => method === "PUT");
  assert.deepEqual([put.path, put.body], ["/v0/topics/t/cursors/c", { seq: 2 }]);
});
