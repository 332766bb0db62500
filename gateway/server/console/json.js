// JSON as it was sent: payloads are cut out of a response as text and never parsed, so 9.90 stays 9.90, a number of
// thirty digits stays exact, and keys keep their order.

const STRING = /"[^"\\]*(?:\\.[^"\\]*)*"/y;
const PLAIN = /[^\s,\]}]+/y;
const MARK = /["{}[\]]/g;
const TOKEN = /("[^"\\]*(?:\\.[^"\\]*)*")(\s*:)?|[{}[\],]|[^\s{}[\],:"]+/g;

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

// [key, text of the value] of each member of the object that `text` is.
function* members(text) {
  let at = blank(text, blank(text, 0) + 1);
  while (text[at] === '"') {
    const end = skip(text, at);
    const from = blank(text, blank(text, end) + 1);
    const to = skip(text, from);
    yield [JSON.parse(text.slice(at, end)), text.slice(from, to)];
    at = blank(text, to);
    if (text[at] === ",") at = blank(text, at + 1);
  }
}

function* elements(text) {
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
  for (const [key, value] of members(text)) {
    found[key] = key === list ? [...elements(value)].map(record) : JSON.parse(value);
  }
  return found;
}

function record(text) {
  const found = {};
  for (const [key, value] of members(text)) found[key] = RAW.has(key) ? value : JSON.parse(value);
  return found;
}

const kindOf = word => (word === "true" || word === "false" || word === "null" ? "word" : "number");

// The text indented, as [kind, text] pairs: key, string, number, word, mark.
export function pretty(text, most = 20000) {
  const parts = [];
  let depth = 0;
  let used = 0;
  let before = "";
  const line = () => "\n" + "  ".repeat(depth);
  for (const [token, string, colon] of text.matchAll(TOKEN)) {
    if (used > most) return {parts, cut: true};
    used += token.length;
    if (token === "}" || token === "]") {
      depth -= 1;
      parts.push(["mark", before === "{" || before === "[" ? token : line() + token]);
    } else {
      const lead = before === "{" || before === "[" || before === "," ? line() : "";
      if (token === "{" || token === "[") depth += 1;
      if (colon !== undefined) parts.push(["key", lead + string], ["mark", ": "]);
      else if (string) parts.push(["string", lead + string]);
      else if (token === "," || token === "{" || token === "[") parts.push(["mark", (token === "," ? "" : lead) + token]);
      else parts.push([kindOf(token), lead + token]);
    }
    before = colon !== undefined ? ":" : token;
  }
  return {parts, cut: false};
}
