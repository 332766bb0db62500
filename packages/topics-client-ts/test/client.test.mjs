// Claims about parts of the client, with answers made here.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { test } from "node:test";
import { inspect } from "node:util";
import { DecodeError, ERRORS, Forbidden, GapError, InvalidRequest, OPERATIONS, Throttled, TopicFull, Topics, TopicsError, Unavailable } from "../dist/index.js";
import { sleep } from "../dist/connection.js";
import { EventLines } from "../dist/streams.js";

/** A client, and the requests it sent. `answers` are statuses and bodies, or errors of the network, in order. */
function scripted(answers, options = {}) {
  const asked = [];
  const fetch = async (url, { method, headers, body }) => {
    asked.push({ method, path: url.replace("http://t", ""), headers, body: body && JSON.parse(body), at: performance.now() });
    const answer = answers.shift();
    if (answer instanceof Error) throw answer;
    const [status, told, more = {}] = answer;
    const ready = typeof told === "string" || told instanceof ReadableStream;
    return new Response(ready ? told : JSON.stringify(told), { status, headers: more });
  };
  return [new Topics("http://t/", { fetch, ...options }), asked];
}

const failure = (code, detail) => ({ error: { code, message: code, ...(detail && { detail }) } });
const appended = (first, count) => ({ first_seq: first, last_seq: first + count - 1, count, created: false, deduped: false });
const counted = (n) => Array.from({ length: n }, (_, each) => ({ data: each }));

test("one line says that the service does not answer yet, and how long it is tried", async () => {
  const lines = [];
  const refused = () => [503, failure("not_ready"), { "Retry-After": "0.9" }];
  const [client] = scripted([refused(), refused(), refused(), [200, appended(1, 1)]], { warn: (line) => lines.push(line) });
  await client.publish("t", 1);
  assert.equal(lines.length, 1);
  assert.match(lines[0], /^http:\/\/t: no answer yet \(.*not_ready.*\); trying again for 5\d s$/);
});

test("an error that comes soon has no line before it", async () => {
  const lines = [];
  const answers = Array.from({ length: 9 }, () => [503, failure("not_ready"), { "Retry-After": "0.5" }]);
  const [client] = scripted(answers, { patienceMs: 1500, warn: (line) => lines.push(line) });
  await assert.rejects(client.publish("t", 1), TopicsError);
  assert.deepEqual(lines, []);
});

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

test("a refusal after an attempt that may have been carried out is not told as not done", async () => {
  for (const [before, outcome] of [["unknown", "unknown"], ["not_done", "not_done"]]) {
    const [client] = scripted([[503, failure("not_ready", { outcome: before })], [404, failure("topic_not_found")]]);
    await assert.rejects(client.publish("t", 1), { code: "topic_not_found", outcome });
  }
});

test("patience ends", async () => {
  const [client, asked] = scripted(Array(50).fill([429, failure("throttled")]), { patienceMs: 120 });
  await assert.rejects(client.state("t"), Throttled);
  assert.ok(asked.length > 1 && asked.length < 6);
});

test("a batch is not repeated when its topic may have forgotten the key, although patience is left", async (t) => {
  let now = 0;
  let begun = [];
  t.mock.method(performance, "now", () => now);
  t.mock.method(globalThis, "setTimeout", (done, ms) => {
    if (ms < 90_000) setImmediate(() => done((now += ms))); // not the limit of an attempt
  });
  let failed = new TypeError("fetch failed");
  const fetch = async () => {
    begun.push(now);
    if (begun.length === 1) now += 85_000; // the answer is lost
    throw failed;
  };
  const client = new Topics("http://t", { fetch, warn: () => undefined });
  await assert.rejects(client.publish("t", 1), (error) => error instanceof Unavailable && error.idempotencyKey !== undefined);
  assert.ok(begun.length > 2 && begun.at(-1) > 95_000 && begun.at(-1) <= 100_000, String(begun));
  const asked = async (ask) => {
    now = 0;
    begun = [];
    await assert.rejects(ask(), Unavailable);
    return begun.at(-1);
  };
  assert.ok((await asked(() => client.state("t"))) > 140_000); // may be asked at any time
  failed = Object.assign(failed, { cause: { code: "ECONNREFUSED" } });
  assert.ok((await asked(() => client.publish("t", 1))) > 140_000); // was never written
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
  const [client, asked] = scripted([[200, {}], [200, {}]], { token: "s3cret" });
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

test("deleted topics that a new session shows are given at once, although its stream is silent", { timeout: 4000 }, async () => {
  const silent = () => [200, new ReadableStream()];
  const none = [200, { stream_url: "/v0/watch/x", topics: {} }];
  const [client] = scripted([watch(0), stream(), none, silent()]);
  const seen = [];
  for await (const { kind, topic } of client.tail("t")) seen.push([kind, topic]); // ends, as no topic is left
  assert.deepEqual(seen, [["deleted", "t"]]);

  const both = [200, { stream_url: "/v0/watch/w", topics: { t: { from_seq: 0 }, u: { from_seq: 0 } } }];
  const [other] = scripted([both, stream(), watch(0), silent()]);
  const tail = other.tail(["t", "u"]);
  assert.deepEqual((await tail.next()).value, { kind: "deleted", topic: "u", seq: 0 });
  tail.close();
});

test("records that a session repeats in several frames are given once", async () => {
  const [client] = scripted([watch(0), stream(record(1), record(2)), stream(record(1), record(2), record(3))]);
  const seen = [];
  for await (const item of client.tail("t")) if (seen.push(item.seq) && item.seq === 3) break;
  assert.deepEqual(seen, [1, 2, 3]);
});

test("a gap that a session repeats is given once, and one that reaches further begins after what was given", async () => {
  const gap = (from, to, reason, earliest) => ["tombstone", { topic: "t", gap_from: from, gap_to: to, reason, earliest_seq: earliest }, `g${to}`];
  const rows = [5, 6].map((seq) => ({ $seq: seq, $ts: 0, data: seq }));
  const two = ["record", { topic: "t", records: rows, from_seq: 4, to_seq: 6 }, "i6"];
  const [client] = scripted([
    watch(0),
    stream(gap(1, 4, "cap", 5), two),
    stream(gap(1, 4, "cap", 5), two, gap(2, 8, "cap", 9), record(9)),
    stream(gap(1, 1, "recreated", 1), record(1)), // the topic was deleted and made again
  ]);
  const seen = [];
  for await (const item of client.tail("t", { gaps: "yield" })) {
    seen.push(item.kind === "gap" ? [item.reason, item.firstSeq, item.lastSeq] : item.seq);
    if (item.seq === 1) break;
  }
  assert.deepEqual(seen, [["cap", 1, 4], 5, 6, ["cap", 7, 8], 9, ["recreated", 1, 1], 1]);
});

for (const [what, answers] of [
  ["does not answer", []],
  ["asks for a pause", Array.from({ length: 9 }, () => [503, failure("not_ready"), { "Retry-After": "30" }])],
]) {
  test(`closing a tail ends its beginning at once, although the service ${what}`, async () => {
    const [client] = scripted(answers, answers.length ? {} : { fetch: (_, { signal }) => new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason))) });
    const tail = client.tail("t", { cursor: "c" });
    const next = tail.next();
    await sleep(0);
    tail.close();
    assert.deepEqual(await next, { done: true, value: undefined });
  });
}

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

/** A tail of `t` with the cursor `c` at 3, and three records after it in one frame. */
function started(...answers) {
  const rows = [4, 5, 6].map((seq) => ({ $seq: seq, $ts: 0, data: seq }));
  const three = ["record", { topic: "t", records: rows, from_seq: 3, to_seq: 6 }, "i6"];
  return scripted([[200, { seq: 3 }], watch(3), stream(three), ...answers], { patienceMs: 0 });
}

const commits = (asked) => asked.filter(({ method }) => method === "PUT").map(({ body }) => body.seq);

test("leaving a loop commits the items before the one in hand", async () => {
  for (const leave of [
    async (tail) => {
      for await (const item of tail) if (item.seq === 5) break;
    },
    async (tail) => {
      await assert.rejects(async () => {
        for await (const item of tail) if (item.seq === 5) throw new RangeError("mine");
      }, RangeError);
    },
  ]) {
    const [client, asked] = started([200, {}]);
    await leave(client.tail("t", { cursor: "c" }));
    assert.deepEqual(commits(asked), [4]);
  }
});

test("an item in hand is committed if the caller says that it is done, and none of a manual tail", async () => {
  const [client, asked] = started([200, {}]);
  const tail = client.tail("t", { cursor: "c" });
  for await (const item of tail) {
    if (item.seq < 5) continue;
    await tail.commit();
    break;
  }
  assert.deepEqual(commits(asked), [5]);
  const [other, sent] = started();
  for await (const item of other.tail("t", { cursor: "c", commit: "manual" })) if (item.seq === 6) break;
  assert.deepEqual(commits(sent), []);
  const [third, told] = started();
  for await (const _ of third.tail("t", { cursor: "c" })) break;
  assert.deepEqual(commits(told), []); // the item in hand is the first
});

test("a new cursor of a tail of new records is stored where the tail began", async () => {
  for (const leave of [
    async (tail) => {
      for await (const { seq } of tail) if (seq === 8) break;
    },
    async (tail) => {
      await tail.begin();
      await tail.commit(); // before the first record
    },
  ]) {
    const stored = [];
    const fetch = async (url, { method, body }) => {
      if (method === "PUT") stored.push(JSON.parse(body).seq);
      const cursor = [method === "PUT" ? 200 : 404, failure("cursor_not_found")];
      const [status, told] = url.endsWith("/cursors/c") ? cursor : method === "POST" ? watch(7) : stream(record(8));
      return new Response(typeof told === "string" ? told : JSON.stringify(told), { status });
    };
    await leave(new Topics("http://t", { fetch }).tail("t", { cursor: "c", fromSeq: "now" }));
    assert.deepEqual(stored, [7]); // so the next run gets record 8
  }
});

test("a tail survives that its cursor cannot be stored for now, and stores it with the next items", async () => {
  const begun = [[200, { seq: 3 }], watch(3), stream(record(4), record(5))];
  const [client, asked] = scripted([...begun, [503, failure("not_ready")], [200, {}]], { patienceMs: 0 });
  const seen = [];
  for await (const { seq } of client.tail("t", { cursor: "c" })) if (seen.push(seq) === 2) break;
  assert.deepEqual([seen, commits(asked)], [[4, 5], [4, 4]]);

  const [other] = scripted([...begun, [403, failure("forbidden")]]);
  const tail = other.tail("t", { cursor: "c" });
  await tail.next();
  await assert.rejects(tail.next(), Forbidden);
});

test("a topic that is recreated while a batch is in hand is read from its first record", async () => {
  const begun = [[200, { seq: 49 }], watch(49)];
  const recreated = ["tombstone", { topic: "t", gap_from: 1, gap_to: 9, reason: "recreated", earliest_seq: 1 }, "g"];
  const [, frames] = stream(record(50));
  const refused = (head_seq) => [400, failure("invalid_request", { field: "seq", head_seq })];
  const after = [stream(recreated)[1], stream(record(1), record(2))[1]].join("");
  const [client, asked] = scripted([...begun, [200, frames + after], refused(2), [200, {}], [200, {}]], { patienceMs: 0 });
  const seen = [];
  for await (const { seq, kind } of client.tail("t", { cursor: "c", gaps: "yield" })) {
    seen.push([kind, seq]);
    if (kind === "record" && seq === 2) break;
  }
  assert.deepEqual(seen, [["record", 50], ["gap", 0], ["record", 1], ["record", 2]]);
  assert.deepEqual(commits(asked), [50, 0, 1]);
  const [other] = scripted([...begun, [200, frames], refused(51)], { patienceMs: 0 });
  const tail = other.tail("t", { cursor: "c" });
  await tail.next();
  await assert.rejects(tail.next(), InvalidRequest);
});

test("a commit that fails at the end of a loop is thrown, but hides no error of the caller", async () => {
  const [client] = started([403, failure("forbidden")]);
  await assert.rejects(async () => {
    for await (const item of client.tail("t", { cursor: "c" })) if (item.seq === 5) break;
  }, Forbidden);
  const [other] = started([403, failure("forbidden")]);
  await assert.rejects(async () => {
    for await (const item of other.tail("t", { cursor: "c" })) if (item.seq === 5) throw new RangeError("mine");
  }, RangeError);
});

test("a gap and data that is not decoded are thrown, with the items before them committed", async () => {
  const gap = ["tombstone", { topic: "t", gap_from: 2, gap_to: 4, reason: "cap", earliest_seq: 5 }, "g"];
  const [client, asked] = scripted([[404, failure("cursor_not_found")], watch(0), [200, stream(record(1))[1] + stream(gap)[1]], [200, {}]]);
  await assert.rejects(async () => {
    for await (const item of client.tail("t", { cursor: "c" })) assert.equal(item.seq, 1);
  }, GapError);
  assert.deepEqual(commits(asked), [1]);

  const [other, sent] = started([200, {}]);
  const decode = (data) => {
    if (data === 5) throw new RangeError("five");
    return { number: data };
  };
  const tail = other.tail("t", { cursor: "c", decode });
  assert.deepEqual((await tail.next()).value.data, { number: 4 });
  await assert.rejects(tail.next(), (error) => error instanceof DecodeError && error.record.data === 5 && /five/.test(error.message));
  assert.deepEqual(commits(sent), [4]);
  assert.deepEqual((await tail.next()).value.data, { number: 6 });
});

test("reads decode and publishes encode", async () => {
  const rows = [1, 2].map((seq) => ({ $seq: seq, $ts: 0, data: String(seq) }));
  const [client, asked] = scripted([
    [200, appended(1, 1)],
    [200, appended(2, 1)],
    [200, { records: rows, next_from_seq: 2, head_seq: 2, caught_up: true, tombstone: null }],
  ]);
  const encode = String;
  await client.publish("t", 1n, { encode });
  const publisher = client.publisher("t", { encode });
  await publisher.send(2n);
  await publisher.close();
  assert.deepEqual(asked.map(({ body }) => body.records), [[{ data: "1" }], [{ data: "2" }]]);
  const found = [];
  for await (const { data } of client.read("t", { decode: BigInt })) found.push(data);
  assert.deepEqual(found, [1n, 2n]);
});

test("a handler gets what decode makes, and a job for which it throws fails as it came", async () => {
  const lease = { $ts: 0, deadline: 0, deliveries: 1 };
  const claimed = ["1", "x"].map((data, n) => ({ $seq: n + 1, data, lease_id: `l${n}`, ...lease }));
  const [client, asked] = scripted([[200, { claimed }], [200, { skipped: [] }], [200, { skipped: [] }]]);
  const seen = [];
  const worker = client.worker("q", (job) => seen.push(job.data), {
    concurrency: 2,
    decode: BigInt,
    onFailure: (job, error) => {
      seen.push([job.data, error.name]);
      worker.stop();
    },
  });
  await worker.run();
  assert.deepEqual(seen, [1n, ["x", "SyntaxError"]]);
  assert.deepEqual(asked.slice(1).map(({ path }) => path.split("/").pop()).sort(), ["ack", "nack"]);
});

const JOB = { $ts: 0, data: null, deadline: 0, deliveries: 1 };
const job = (seq) => ({ ...JOB, $seq: seq, lease_id: `l${seq}` });
const TOLD = { acked: 1, skipped: [] };

test("a claim acks and gives back, and a service that passes over it gets requests of their own", async () => {
  const nacked = { nacked: 1, skipped: [7] };
  const [client, asked] = scripted([
    [200, { claimed: [job(1)] }],
    [200, { claimed: [job(2)], ack: TOLD, nack: nacked }],
    [200, { claimed: [] }],
    [200, TOLD],
  ]);
  const first = await client.claim("q", "n");
  assert.deepEqual([first.ack, first.nack], [undefined, undefined]);
  const second = await client.claim("q", "n", { ack: first, nack: [{ seq: 7, leaseId: "x" }], delayMs: 5, reason: "no" });
  assert.deepEqual([second[0].seq, second.ack, second.nack], [2, TOLD, nacked]);
  const third = await client.claim("q", "n", { max: 3, ack: second, nack: [] });
  assert.deepEqual([third.length, third.ack, third.nack], [0, TOLD, undefined]);
  const held = (seq) => ({ seqs: [seq], lease_ids: [`l${seq}`] });
  assert.deepEqual(asked.map(({ path, body }) => [path.split("/").pop(), body]), [
    ["claim", { node: "n" }],
    ["claim", { node: "n", ack: held(1), nack: { seqs: [7], lease_ids: ["x"], delay_ms: 5, reason: "no" } }],
    ["claim", { node: "n", max: 3, ack: held(2) }],
    ["ack", { node: "n", ...held(2) }],
  ]);
});

test("a worker acks in the claim for its next job, and the last one when it stops", async () => {
  const [client, asked] = scripted([
    [200, { claimed: [job(1)] }],
    [200, { claimed: [job(2)], ack: TOLD }],
    [200, TOLD],
  ]);
  const worker = client.worker("q", ({ seq }) => seq === 2 && worker.stop());
  await worker.run();
  const told = asked.map(({ path, body }) => [path.split("/").pop(), body.wait_ms, (body.ack ?? body).seqs]);
  assert.deepEqual(told, [["claim", 20_000, undefined], ["claim", 0, [1]], ["ack", undefined, [2]]]);
  assert.equal(worker.done, 2);
});

/** A worker of `count` jobs that run until a request extends the last one. Returns the seqs of each extension. */
async function extensions(count, most) {
  const claims = [Array.from({ length: count }, (_, n) => job(n + 1))];
  const extended = [];
  let finish;
  const finished = new Promise((resolve) => (finish = resolve));
  const end = () => (worker.stop(), finish());
  const fetch = async (url, { body }) => {
    const operation = url.split("/").pop();
    if (operation !== "extend") return Response.json(operation === "claim" ? { claimed: claims.shift() ?? [] } : { skipped: [] });
    const { seqs } = JSON.parse(body);
    extended.push(seqs);
    if (seqs.length > most) return Response.json(failure("batch_too_large"), { status: 413 });
    if (seqs.includes(count)) end();
    return Response.json({ skipped: [] });
  };
  const onWarning = (message) => (extended.push(message), end());
  const worker = new Topics("http://t", { fetch }).worker("q", () => finished, { concurrency: count, leaseMs: 3, onWarning });
  await worker.run();
  return extended;
}

test("a worker extends more leases than one request may name", async () => {
  const found = await extensions(5, 2);
  assert.deepEqual(found.slice(0, 4), [[1, 2, 3, 4, 5], [1, 2], [3, 4], [5]]);
  const [first, second] = await extensions(1002, 1000);
  assert.deepEqual([first.length, second], [1000, [1001, 1002]]); // none is refused
});

test("fields of answers are in camelCase, also deep, and data and meta stay as they are", async () => {
  const told = { topic: "t", head_seq: 3, last_write_ts: null, config: { ttl_ms: 1, dead_letter: null }, queue: { in_flight: 2 } };
  const job = { $seq: 1, $ts: 2, data: { a_b: [{ c_d: 1 }] }, meta: { e_f: 1 }, lease_id: "l" };
  const filter = ["tag", "Glob", "a_b*"];
  const [client] = scripted([[200, told], [200, { jobs: [job], next_seq: 2 }], [200, { router: "r", preserve_tag: true, filter }]]);
  const { performance: _, ...state } = await client.state("t");
  assert.deepEqual(state, { topic: "t", headSeq: 3, lastWriteTs: null, config: { ttlMs: 1, deadLetter: null }, queue: { inFlight: 2 } });
  const { jobs, nextSeq } = await client.peek("t");
  assert.deepEqual([jobs, nextSeq], [[{ seq: 1, ts: 2, data: job.data, meta: job.meta, leaseId: "l" }], 2]);
  assert.deepEqual(await client.router("r"), { router: "r", preserveTag: true, filter });
});

test("configurations are taken in camelCase and with the names of the service", async () => {
  const [client, asked] = scripted([[200, { config: {} }], [200, { config: {} }], [200, appended(1, 1)], [200, {}]]);
  await client.configure("t", { type: "queue", maxDeliveries: 5, deadLetter: "a_b:C" });
  await client.configure("t", { type: "queue", max_deliveries: 5, dead_letter: "a_b:C" });
  await client.publish("t", 1, { config: { ttlMs: 5 } });
  await client.setRouter("r", { source: "a", dest: "b", preserveTag: false, filter: ["tag", "Eq", "x_Y"] });
  const config = { type: "queue", max_deliveries: 5, dead_letter: "a_b:C" };
  assert.deepEqual([asked[0].body, asked[1].body, asked[2].body.config], [config, config, { ttl_ms: 5 }]);
  assert.deepEqual(asked[3].body, { source: "a", dest: "b", preserve_tag: false, filter: ["tag", "Eq", "x_Y"] });
});

/** What a client sends as its key with these variables. */
async function sent(url, options, environment) {
  const kept = { ...process.env };
  for (const name of Object.keys(process.env)) if (name.startsWith("TOPICS_")) delete process.env[name];
  Object.assign(process.env, { XDG_CONFIG_HOME: "/nonexistent", ...environment });
  try {
    const { url: found, token } = new Topics(url, options).connection.options;
    return [found, token];
  } finally {
    process.env = kept;
  }
}

test("the token of the environment goes only where TOPICS_URL points", async () => {
  const environment = { TOPICS_URL: "https://mine.example", TOPICS_TOKEN: "env" };
  assert.deepEqual(await sent(undefined, {}, {}), ["http://127.0.0.1:4000", undefined]);
  assert.deepEqual(await sent(undefined, {}, environment), ["https://mine.example", "env"]);
  assert.deepEqual(await sent("https://other", {}, { TOPICS_TOKEN: "env" }), ["https://other", "env"]);
  for (const [url, token] of [
    ["https://MINE.example:443/", "env"],
    ["http://mine.example", undefined],
    ["https://mine.example:4000", undefined],
    ["https://mine.example.evil", undefined],
    ["https://mine.example@evil", undefined],
    ["https://evil/?https://mine.example", undefined],
  ]) {
    assert.deepEqual(await sent(url, {}, environment), [url, token]);
    assert.deepEqual(await sent(url, { token: "given" }, environment), [url, "given"]);
    assert.deepEqual(await sent(url, { key: "old" }, environment), [url, "old"]);
    assert.deepEqual(await sent(url, { token: "" }, environment), [url, undefined]);
  }
});

test("wrong options, URLs and tokens are named", () => {
  assert.throws(() => new Topics("http://t", { tokn: "k" }), /Topics has no "tokn"; it has token, /);
  assert.throws(() => new Topics("http://t", { token: "a", key: "b" }), /token and key/);
  assert.throws(() => new Topics("http://t", { context: "a" }), /both name a service/);
  for (const url of ["localhost:4000", "ftp://a", "http://", "", "http://a:99999"]) {
    assert.throws(() => new Topics(url), /is not the URL of a service/);
  }
  for (const token of ["two words", "line\nbreak", "café", "\0"]) {
    assert.throws(() => new Topics("http://t", { token }), (error) => /the token has/.test(error.message) && !error.message.includes(token));
  }
});

test("where there is no Node, variables and files are not looked for, and a URL may be relative", () => {
  const kept = Object.getOwnPropertyDescriptor(globalThis, "process");
  for (const value of [undefined, { env: { TOPICS_TOKEN: "bundled" }, versions: {} }]) {
    Object.defineProperty(globalThis, "process", { value, configurable: true });
    try {
      const { url, token } = new Topics("/topics/").connection.options;
      assert.deepEqual([url, token], ["/topics/", undefined]);
    } finally {
      Object.defineProperty(globalThis, "process", kept);
    }
  }
});

test("a client that is printed does not show its token", () => {
  const client = new Topics("http://t", { token: "s3cret" });
  const tail = client.tail("t");
  const shown = [client, client.connection, tail].map((each) => inspect(each, { depth: 9 }) + JSON.stringify(each));
  assert.ok(!shown.join().includes("s3cret"));
  assert.equal(client.connection.options.token, "s3cret");
});

test("a redirect is an error: followed, it would turn a write into a read", async () => {
  const asked = [];
  const server = createServer((request, response) => {
    asked.push(`${request.method} ${request.url}`);
    if (request.url.startsWith("/v0")) response.writeHead(301, { location: "/else" }).end();
    else response.end(JSON.stringify(appended(1, 1)));
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${server.address().port}`;
  try {
    await assert.rejects(new Topics(url).publish("t", 1), (error) => error instanceof TopicsError && error.message.includes(`${url} redirects to /else`));
    assert.deepEqual(asked, ["POST /v0/topics/t?return_seqs=false"]);
  } finally {
    server.closeAllConnections();
    server.close();
  }
  const opaque = { status: 0, type: "opaqueredirect", headers: new Headers(), body: null };
  await assert.rejects(new Topics("http://t", { fetch: async () => opaque }).state("t"), /http:\/\/t redirects: give/);
});

test("a name that a URL takes for a folder is refused, and asks for nothing else", async () => {
  const [client, asked] = scripted([]);
  for (const name of [".", ".."]) {
    await assert.rejects(client.deleteCursor("t", name), TypeError);
    await assert.rejects(client.publish(name, 1), TypeError);
  }
  assert.deepEqual(asked, []);
  const [other, paths] = scripted([[200, { deleted: true }], [200, { deleted: true }]]);
  await other.deleteCursor("t", "...");
  await other.deleteCursor("t", "a/../b");
  assert.deepEqual(paths.map(({ path }) => path), ["/v0/topics/t/cursors/...", "/v0/topics/t/cursors/a%2F..%2Fb"]);
});

test("an error code that is the name of a property is a code like others", async () => {
  for (const code of ["constructor", "__proto__", "toString"]) {
    const [client] = scripted([[400, failure(code)]]);
    const error = await client.state("t").catch((each) => each);
    assert.deepEqual([error instanceof TopicsError, error.code], [true, code]);
  }
});

test("a message of a WebSocket that cannot be read ends the tail with an error, not the program", async () => {
  for (const message of ["{", "null", "{}"]) {
    class WebSocket extends EventTarget {
      readyState = 1;
      constructor() {
        super();
        setTimeout(() => this.onmessage({ data: message }));
      }
      send() {}
      close() {}
    }
    const watch = { wid: "w", stream_url: "/v0/watch/w", topics: { t: { from_seq: 0, head_seq: 0, earliest_seq: 1 } } };
    const [client] = scripted([[200, watch]], { WebSocket });
    await assert.rejects(client.tail("t", { transport: "websocket" }).next(), (error) => error instanceof SyntaxError || error instanceof TypeError);
  }
});

/** The seq that a tail over WebSockets gives first, and how long it took. Each socket sends its messages. */
async function overSockets(...sockets) {
  class WebSocket {
    readyState = 1;
    constructor() {
      setTimeout(() => {
        for (const message of sockets.shift()) this.onmessage?.({ data: JSON.stringify(message) });
      });
    }
    send() {}
    close() {}
  }
  const begun = performance.now();
  const tail = scripted([watch(0)], { WebSocket })[0].tail("t", { transport: "websocket" });
  try {
    return [(await tail.next()).value.seq, performance.now() - begun];
  } finally {
    tail.close();
  }
}

test("a tail resumes when the service ends a WebSocket, but not when it refuses the topics or the key", { timeout: 8000 }, async () => {
  const last = [{ op: "record", ...record(1)[1] }];
  const ended = (code, more) => [{ op: "subscribed", topics: { t: { from_seq: 0 } } }, { op: "error", code, ...more }];
  const [seq, waited] = await overSockets(ended("request_timeout", { retry_after_ms: 300 }), last);
  assert.deepEqual([seq, waited >= 299], [1, true]);
  const [later, longer] = await overSockets(...Array.from({ length: 5 }, () => ended("internal")), last);
  assert.deepEqual([later, longer >= 770], [1, true]); // with growing pauses
  await assert.rejects(overSockets(ended("unauthorized")), { code: "unauthorized" });
  await assert.rejects(overSockets([{ op: "error", code: "forbidden", request_id: "s" }]), Forbidden);
});

test("a worker tells why a job failed, and survives options that throw", async () => {
  const jobs = (...seqs) => [200, { claimed: seqs.map((seq) => ({ $seq: seq, $ts: 1, data: seq, lease_id: `l${seq}`, deadline: 9, deliveries: 1 })) }];
  const nacked = async (failed, options = {}) => {
    const [client, asked] = scripted([jobs(1), [200, { nacked: 1 }]]);
    const worker = client.worker("q", () => (worker.stop(), Promise.reject(failed)), { onFailure: () => {}, ...options });
    await worker.run();
    return asked.find(({ path }) => path.endsWith("/nack"))?.body.reason;
  };
  assert.equal(await nacked(new RangeError("too far")), "RangeError: too far");
  assert.equal(await nacked(new Error("")), "Error");
  assert.equal(await nacked("text"), "text");
  const long = await nacked(new Error("ä".repeat(600)));
  assert.ok(Buffer.byteLength(long) <= 512 && long.endsWith("ä"));
  assert.equal(await nacked(new Error("x"), { reason: () => undefined }), undefined);
  const told = [];
  const kept = console.warn;
  console.warn = (...words) => told.push(words[0]);
  try {
    const thrower = () => { throw new Error("of the option"); };
    for (const option of ["reason", "backoff"]) assert.equal(await nacked(new Error("x"), { [option]: thrower }), undefined);
    assert.equal(await nacked(Object.create(null)), undefined);
  } finally {
    console.warn = kept;
  }
  assert.deepEqual(told, Array(3).fill("topics: job 1 of q comes back when its lease ends"));
});

test("a pause of weeks, as a proxy may ask for, is no pause of none", async (t) => {
  const asked = [];
  t.mock.method(globalThis, "setTimeout", (_, ms) => asked.push(ms));
  const stop = new AbortController();
  for (const ms of [50, 3e9, Infinity]) sleep(ms, stop.signal).catch(() => undefined);
  assert.deepEqual(asked, [50, 2 ** 31 - 1, 2 ** 31 - 1]);
  stop.abort();
});
