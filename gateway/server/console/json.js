// JSON as it was sent: payloads are cut out of a response as text and never parsed, so 9.90 stays 9.90, a number of
// thirty digits stays exact, and keys keep their order.

const STRING = /"[^"\\]*(?:\\.[^"\\]*)*"/y;
const PLAIN = /[^\s,\]}]+/y;
const MARK = /["{}[\]]/g;

function blank(text, at) {
  while (" \n\r\t".includes(text[at]) && at < text.length) at += 1;
  return at;
}

function match(pattern, text, at) {
  pattern.lastIndex = at;
  if (!pattern.test(text)) throw new SyntaxError(`not JSON at ${at}`);
  return pattern.lastIndex;
}

// The end of the value that begins at `at`.
export function skip(text, at) {
  if (text[at] === '"') return match(STRING, text, at);
  if (text[at] !== "{" && text[at] !== "[") return match(PLAIN, text, at);
  let depth = 0;
  do {
    at = match(MARK, text, at);
    const mark = text[at - 1];
    if (mark === '"') at = match(STRING, text, at - 1);
    else depth += mark === "{" || mark === "[" ? 1 : -1;
  } while (depth);
  return at;
}

// [text of the key, text of the value] of each member of the object that `text` is.
export function* members(text) {
  let at = blank(text, blank(text, 0) + 1);
  while (text[at] === '"') {
    const end = skip(text, at);
    const from = blank(text, blank(text, end) + 1);
    const to = skip(text, from);
    yield [text.slice(at, end), text.slice(from, to)];
    at = blank(text, to);
    if (text[at] === ",") at = blank(text, at + 1);
  }
}

// The text of each element of the array that `text` is.
export function* elements(text) {
  let at = blank(text, blank(text, 0) + 1);
  while (at < text.length && text[at] !== "]") {
    const to = skip(text, at);
    yield text.slice(at, to);
    at = blank(text, to);
    if (text[at] === ",") at = blank(text, at + 1);
  }
}

const RAW = new Set(["data", "meta"]);

// A response whose member `list` holds records: their `data` and `meta` are text.
export function withRecords(text, list = "records") {
  const found = {};
  for (const [name, value] of members(text)) {
    const key = JSON.parse(name);
    found[key] = key === list ? [...elements(value)].map(record) : JSON.parse(value);
  }
  return found;
}

function record(text) {
  const found = {};
  for (const [name, value] of members(text)) {
    const key = JSON.parse(name);
    found[key] = RAW.has(key) ? value : JSON.parse(value);
  }
  return found;
}

// The values of the members named so of the object that `text` is, parsed: {} of what is no object.
export function picked(text, names) {
  const found = {};
  if (text?.startsWith("{")) {
    for (const [name, value] of members(text)) {
      const key = JSON.parse(name);
      if (names.includes(key)) found[key] = JSON.parse(value);
    }
  }
  return found;
}

const ESCAPED = /\\(?:u([0-9a-fA-F]{4})|(.))/g;
const MEANT = {n: "\n", r: "\r", t: "\t", b: "\b", f: "\f"};

// Whether the text of some JSON holds `wanted`, in any case, as it was sent or with its escapes read.
export function holds(text, wanted) {
  const looked = wanted.toLowerCase();
  if (text.toLowerCase().includes(looked)) return true;
  if (!text.includes("\\")) return false;
  const read = text.replace(ESCAPED, (_, code, mark) => (code ? String.fromCharCode(parseInt(code, 16)) : MEANT[mark] ?? mark));
  return read.toLowerCase().includes(looked);
}

// What a value is, by its first character: object, array, string, word, number.
export const kindOf = text => ({"{": "object", "[": "array", '"': "string", t: "word", f: "word", n: "word"})[text[0]] ?? "number";
