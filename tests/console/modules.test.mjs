// Claims about the modules of gateway/server/console that need no document. Run with node --test.

import assert from "node:assert/strict";
import {cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync} from "node:fs";
import {tmpdir} from "node:os";
import test from "node:test";

// The console is served as it is, so its files have no package.json that would tell Node that they are modules.
async function load(name) {
  const text = readFileSync(new URL(`../../gateway/server/console/${name}`, import.meta.url), "utf8");
  return import("data:text/javascript," + encodeURIComponent(text));
}

const {elements, holds, kindOf, members, picked, skip, withRecords} = await load("json.js");
const {BOX, layout, path, quantile, roundUp} = await load("geometry.js");
const {compact, millis, size, span} = await load("format.js");

test("payloads are the text that was sent", () => {
  const data = '{"b":1, "a": 9.90,"2":[ ],"1":{"x":"}]\\"\\\\"},"n":123456789012345678901234567890}';
  const answer = withRecords(`{"topic":"t","records":[{"$seq":1,"$ts":5,"data":${data},"meta":{"k":1e400}} , {"$seq":2,"data":null}],"lag":0}`);
  assert.equal(answer.records[0].data, data);
  assert.equal(answer.records[0].meta, '{"k":1e400}');
  assert.deepEqual(answer.records[1], {$seq: 2, data: "null"});
  assert.deepEqual([answer.topic, answer.lag], ["t", 0]);
});

test("an empty list, blanks and records within data do not confuse it", () => {
  assert.deepEqual(withRecords(' { "records" : [ ] , "x" : true } '), {records: [], x: true});
  assert.equal(withRecords('{"records":[{"data":{"records":[{"data":1}]}}]}').records[0].data, '{"records":[{"data":1}]}');
});

test("the end of every kind of value is found, also of a long text", () => {
  for (const value of ["1", "-1.5e3", "true", "null", '""', '"\\""', "[]", "{}", '[[1,{"a":"]"}]]', JSON.stringify("x".repeat(2e6) + '"\\')]) {
    assert.equal(skip(value + ",1", 0), value.length, value.slice(0, 20));
  }
});

test("the parts of a value are its text, keys and numbers as they were sent", () => {
  const text = '{ "a\\u0062" : 9.90, "n":123456789012345678901234567890 , "__proto__":[1e400, {"x":"]}"}], "a\\u0062":-0 }';
  assert.deepEqual([...members(text)], [['"a\\u0062"', "9.90"], ['"n"', "123456789012345678901234567890"], ['"__proto__"', '[1e400, {"x":"]}"}]'], ['"a\\u0062"', "-0"]]);
  assert.deepEqual([...elements('[1e400 , {"x":"]}"},[ ] ]')], ["1e400", '{"x":"]}"}', "[ ]"]);
  assert.deepEqual(["{}", "[]", '""', "true", "null", "-1", "9.90"].map(kindOf), ["object", "array", "string", "word", "word", "number", "number"]);
});

test("text is found in values in any case, as it was sent and as it is meant", () => {
  const text = '{"city":"K\\u00f6ln \\"am\\" Rhein","n":9.90,"path":"a\\/b"}';
  for (const wanted of ["köln", "KÖLN", "k\\u00f6", '"am" rhein', "9.90", "a/b", '"n":9']) assert.ok(holds(text, wanted), wanted);
  for (const wanted of ["koln", "9.9.", "bonn"]) assert.ok(!holds(text, wanted), wanted);
  assert.ok(!holds('"\\u00"', "x"), "what is no whole escape is passed over");
});

test("only what is asked for of an object is parsed", () => {
  assert.deepEqual(picked('{"$dead_letter_reason":"a\\nb","big":1e999,"$dead_letter_deliveries":3}', ["$dead_letter_reason", "$dead_letter_deliveries"]),
    {$dead_letter_reason: "a\nb", $dead_letter_deliveries: 3});
  for (const text of [undefined, "null", "[1]", '"$dead_letter_reason"']) assert.deepEqual(picked(text, ["$dead_letter_reason"]), {});
});

test("numbers read well", () => {
  assert.deepEqual([compact(0), compact(9.25), compact(9999), compact(12345), compact(1234567)], ["0", "9.3", "9,999", "12.3 k", "1.23 M"]);
  assert.deepEqual([size(0), size(1536), size(5 << 20), size(undefined)], ["0 B", "1.5 KiB", "5.0 MiB", "–"]);
  assert.deepEqual([millis(0.05), millis(2.34), millis(250), millis(1500)], ["50 µs", "2.3 ms", "250 ms", "1.5 s"]);
  assert.deepEqual([span(59000), span(61000), span(7200000), span(864000000)], ["59 s", "1 min", "2 h", "10 d"]);
});

test("a scale ends at the nearest round number above", () => {
  assert.deepEqual([0, 1, 1.1, 3, 7, 99, 101].map(n => roundUp(n)), [1, 1, 2, 5, 10, 100, 200]);
  assert.deepEqual([700, 3000, 3 << 20].map(n => roundUp(n, true)), [1000, 5 * 1024, 5 << 20]);
});

test("a line has a gap where a value is not known", () => {
  const same = n => n;
  assert.equal(path([[0, 1], [1, 2], [2, null], [3, 4]], same, same), "M0.0 1.0L1.0 2.0M3.0 4.0");
  assert.equal(path([], same, same), "");
});

test("a quantile is that of the syncs between two scrapes", () => {
  const scrape = (...counts) => ({buckets: ["100", "1000", "+Inf"].map((le, i) => ({le, count: counts[i]}))});
  assert.equal(quantile(scrape(10, 20, 20), scrape(10, 20, 20), 0.5), null);
  assert.equal(quantile(scrape(20, 30, 30), scrape(10, 20, 20), 0.5), 0.05);
  assert.equal(quantile(scrape(10, 30, 30), scrape(10, 20, 20), 0.5), 0.55);
  assert.equal(quantile(scrape(10, 20, 30), scrape(10, 20, 20), 0.99), 1);
});

test("a topic stands to the right of all that it gets records from, and a cycle ends", () => {
  const routers = [["a", "b"], ["b", "c"], ["a", "d"], ["x", "y"], ["y", "x"]].map(([source, dest]) => ({source, dest}));
  const {places, left} = layout(routers);
  assert.equal(left, 0);
  assert.equal(places.size, 6);
  for (const {source, dest} of routers.slice(0, 3)) assert.ok(places.get(source)[0] < places.get(dest)[0], `${source} ${dest}`);
  assert.equal(new Set([...places.values()].map(String)).size, 6, "no two at one place");
});

test("a graph with a column that has no topic has a height, and all its topics a place", () => {
  // Only the first 120 topics are drawn: here none of the first column.
  const routers = Array.from({length: 120}, (_, i) => ({source: "z", dest: `a${i}`}));
  const {places, height, width, left} = layout(routers);
  assert.deepEqual([places.size, left], [120, 1]);
  assert.ok(Number.isFinite(width) && height > 120 * BOX.height, `${height}`);
  for (const [topic, [x, y]] of places) assert.ok(Number.isFinite(x) && y >= 0 && y < height, `${topic}: ${x} ${y}`);
});

test("a long chain and a thousand topics are laid out at once", () => {
  const chain = Array.from({length: 1000}, (_, i) => ({source: `t${i}`, dest: `t${i + 1}`}));
  const begun = performance.now();
  const {places, left} = layout(chain);
  assert.equal(places.size + left, 1001);
  assert.ok(performance.now() - begun < 5000);
});

// A module with what it imports: data URLs in the place of paths. `instead` has modules of the test's own.
function linked(name, instead = {}) {
  if (name in instead) return "data:text/javascript," + encodeURIComponent(instead[name]);
  const at = new URL(`../../gateway/server/console/${name}`, import.meta.url);
  const root = new URL("../../gateway/server/console/", import.meta.url).href;
  const text = readFileSync(at, "utf8").replace(/(from|import) "(\.[^"]+)"/g, (_, word, path) =>
    `${word} "${linked(new URL(path, at).href.slice(root.length), instead)}"`);
  return "data:text/javascript," + encodeURIComponent(text);
}

const LIT = "export const html = () => '', svg = html, nothing = '', render = () => {};";
const element = new Map();
globalThis.document = {hidden: false};
globalThis.HTMLElement = class extends EventTarget {
  isConnected = true;
};
globalThis.customElements = {define: (name, kind) => element.set(name, kind)};
const turns = async (times = 20) => {
  for (let i = 0; i < times; i += 1) await new Promise(setImmediate);
};

test("what is no answer of the service is an error that the console knows", async t => {
  const {get, records} = await import(linked("api.js"));
  const answers = (status, type, text) => t.mock.method(globalThis, "fetch", async () => new Response(text, {status, headers: {"content-type": type}}));
  answers(200, "text/html", "<h1>Sign in</h1>");
  await assert.rejects(get("/v0/ready"), {status: 0, code: "unreachable", message: /Something else/});
  await assert.rejects(records("t", {}), {status: 0});
  answers(502, "application/json", '{"message":"Bad gateway"}');
  await assert.rejects(get("/v0/ready"), {status: 502, code: "unknown"});
  answers(404, "application/json", '{"error":{"code":"topic_not_found","message":"no topic"}}');
  await assert.rejects(get("/v0/topics/t"), {status: 404, code: "topic_not_found"});
});

test("a view that asks every second listens once for its end, and asks no more behind it", async t => {
  t.mock.timers.enable({apis: ["setTimeout"]});
  const listening = t.mock.method(AbortSignal.prototype, "addEventListener");
  const {View} = await import(linked("ui.js", {"vendor/lit-html.js": LIT}));
  const view = new View();
  view.connectedCallback();
  let runs = 0;
  view.every(1000, () => (runs += 1));
  for (let second = 0; second < 50; second += 1) {
    await turns(3);
    t.mock.timers.tick(1000);
  }
  await turns(3);
  assert.equal(runs, 51);
  assert.equal(listening.mock.callCount(), 1);
  view.disconnectedCallback();
  t.mock.timers.tick(5000);
  await turns(3);
  assert.equal(runs, 51);
});

test("a live view has one stream, also when a key comes while it waits to connect again", async t => {
  t.mock.timers.enable({apis: ["setTimeout"]});
  const opened = [];
  globalThis.liveStream = () => {
    const source = Object.assign(new EventTarget(), {open: true, close: () => (source.open = false)});
    opened.push(source);
    return source;
  };
  const api = `export const access = new EventTarget();
    export const post = async () => ({stream_url: "/v0/watch/w"});
    export const stream = async () => globalThis.liveStream();
    globalThis.liveAccess = access;`;
  await import(linked("views/topic-live.js", {"vendor/lit-html.js": LIT, "api.js": api, "views/record-rows.js": ""}));
  const live = new (element.get("topic-live"))();
  live.connectedCallback();
  await turns();
  opened[0].onerror();
  globalThis.liveAccess.dispatchEvent(new Event("change"));
  globalThis.liveAccess.dispatchEvent(new Event("change"));
  await turns();
  t.mock.timers.tick(10000);
  await turns();
  assert.deepEqual(opened.filter(each => each.open).length, 1);
  live.disconnectedCallback();
  t.mock.timers.tick(10000);
  await turns();
  assert.deepEqual(opened.filter(each => each.open).length, 0);
});

test("a plot has the service's history, then what the page has seen, and a gap where nobody looked", async () => {
  globalThis.performance ??= {now: () => 0};
  const api = "export const access = new EventTarget(), get = 0, metrics = 0; export class Unreachable {}";
  const {service} = await import(linked("service.js", {"api.js": api}));
  service.samples = [{at: 100000, reads: 10}, {at: 102000, reads: 30}];
  assert.deepEqual(service.hour("reads", each => each.reads, true), [[102000, 10]], "without a history");
  service.history = {at: [10000, 20000, 80000, 100000, 110000], reads: [1, null, 3, 4, 5]};
  assert.deepEqual(service.hour("reads", each => each.reads, true, 2), [[10000, 2], [20000, null], [79999, null], [80000, 6], [102000, 10]]);
});

// Lit's templates as plain values: what a view has drawn is looked through for its texts and listeners.
const PLAIN = `export const nothing = "", svg = 0;
  export const html = (strings, ...values) => ({strings, values});
  export const render = (drawn, view) => (view.shown = drawn);`;
const leaves = drawn => (Array.isArray(drawn) ? drawn.flatMap(leaves) : drawn?.values ? drawn.values.flatMap(leaves) : [drawn]);

test("a tree draws what is open, some hundred entries of it, and numbers as they were sent", async () => {
  await import(linked("views/json-tree.js", {"vendor/lit-html.js": PLAIN}));
  const tree = new (element.get("json-tree"))();
  const drawn = async text => {
    tree.text = text;
    await turns(2);
    return leaves(tree.shown);
  };
  tree.connectedCallback();
  const small = await drawn('{"price": 9.90, "n": 123456789012345678901234567890, "a": {"b": {"c": {"d": "deep"}}}}');
  for (const text of ['"price"', "9.90", "123456789012345678901234567890", '"c"', "1 field"]) assert.ok(small.includes(text), text);
  assert.ok(!small.includes('"deep"'), "closed below the third level");
  const long = await drawn(`[${Array.from({length: 100000}, (_, i) => i)}]`);
  assert.ok(long.includes("99") && !long.includes("100"));
  const begun = performance.now();
  const deep = await drawn("[".repeat(100000) + "]".repeat(100000));
  assert.ok(deep.length < 50 && performance.now() - begun < 5000);
  const wide = await drawn(JSON.stringify("x".repeat(1e6)));
  assert.ok(wide.every(each => String(each).length <= 2000));
});

// A copy of the console with the package.json that it lacks, and what it asks of a service.
async function served(answers) {
  const folder = mkdtempSync(`${tmpdir()}/console-`);
  cpSync(new URL("../../gateway/server/console", import.meta.url), folder, {recursive: true});
  writeFileSync(`${folder}/package.json`, '{"type": "module"}');
  globalThis.document = {hidden: false};
  globalThis.fetch = async path => new Response(answers(path), {headers: {"content-type": "application/json"}});
  return [await import(`${folder}/service.js`), await import(`${folder}/api.js`), () => rmSync(folder, {recursive: true})];
}

const rows = names => Object.fromEntries(names.map(name => [name, []]));
const NUMBERS = {...rows(["topics_http_requests_total", "topics_topic_queue_in_flight", "topics_topic_queue_ready"]),
  topics_wal_fsync_latency_us: {buckets: [], count: 0}, topics_records_live: 5};

test("records written are those of the log, however many are live, and the page goes on after answers that are none", async t => {
  t.mock.timers.enable({apis: ["setTimeout", "Date"], now: 1e12});
  t.mock.method(console, "error", () => {});
  let written = 1000;
  let instead = null;
  const told = {"/v0/ready": {}, "/v0/topics": {}, "/v0/metrics/history": {ago_ms: [], since_ms: 0}};
  const answers = path => instead ?? JSON.stringify(told[path.split("?")[0]] ?? {...NUMBERS, topics_records_written_total: (written += 100)});
  const [{service}, {Unreachable}, end] = await served(answers);
  const changed = () => new Promise(resolve => service.addEventListener("change", resolve, {once: true}));
  const turn = async () => {
    const drawn = changed();
    t.mock.timers.tick(2000);
    await drawn;
  };
  try {
    const first = changed();
    service.start();
    await first;
    await new Promise(setImmediate);
    await turn();
    assert.deepEqual(service.samples.map(each => each.records), [1100, 1200]);
    assert.equal(service.rate(each => each.records), 50);
    for (instead of ["{}", "null", "<html>", '{"topics_http_requests_total": 1}']) {
      await new Promise(setImmediate);
      await turn();
      assert.ok(service.error instanceof Unreachable, instead);
      assert.equal(service.state, "unreachable");
    }
    instead = null;
    await new Promise(setImmediate);
    await turn();
    assert.equal(service.state, "ready");
  } finally {
    end();
  }
});
