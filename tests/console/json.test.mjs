// Claims about gateway/server/console/json.js: payloads stay the text that was sent. Run with node --test.

import assert from "node:assert/strict";
import {readFileSync} from "node:fs";
import test from "node:test";

// The console is served as it is, so its files have no package.json that would tell Node that they are modules.
async function load(name) {
  const text = readFileSync(new URL(`../../gateway/server/console/${name}`, import.meta.url), "utf8");
  return import("data:text/javascript," + encodeURIComponent(text));
}

const {pretty, skip, withRecords} = await load("json.js");
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

test("what is pretty is the same JSON, number by number", () => {
  const text = '{"a":[1,9.90,{"b":[],"c":{}}],"d":"x, y","e":[true,null]}';
  const {parts, cut} = pretty(text);
  const shown = parts.map(([, part]) => part).join("");
  assert.equal(cut, false);
  assert.equal(shown.replace(/\s*\n\s*/g, "").replaceAll(": ", ":"), text.replaceAll("x, y", "x, y"));
  assert.equal(shown.split("\n")[1], '  "a": [');
  assert.deepEqual(parts.find(([, part]) => part.includes("9.90")), ["number", "\n    9.90"]);
});

test("a large payload is cut, not drawn", () => {
  const {parts, cut} = pretty(JSON.stringify(Array(100000).fill(1)), 1000);
  assert.equal(cut, true);
  assert.ok(parts.length < 2000);
});

test("numbers read well", () => {
  assert.deepEqual([compact(0), compact(9.25), compact(9999), compact(12345), compact(1234567)], ["0", "9.3", "9,999", "12.3 k", "1.23 M"]);
  assert.deepEqual([size(0), size(1536), size(5 << 20), size(undefined)], ["0 B", "1.5 KiB", "5.0 MiB", "–"]);
  assert.deepEqual([millis(0.05), millis(2.34), millis(250), millis(1500)], ["50 µs", "2.3 ms", "250 ms", "1.5 s"]);
  assert.deepEqual([span(59000), span(61000), span(7200000), span(864000000)], ["59 s", "1 min", "2 h", "10 d"]);
});
