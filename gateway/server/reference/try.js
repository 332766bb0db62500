// The form that sends a request of the page to the service that serves it, and shows the answer. The key is kept in this
// module only: never in an address, a cookie or a store.

import { el, prose } from "./elements.js";

const MOST_SHOWN = 100000;
const MOST_EVENTS = 50;
const PATIENCE_MS = 40000;
const TOLD = ["content-type", "retry-after", "allow", "www-authenticate"];
let key = "";

export function useKey(given) {
  key = given.trim();
}

/** JSON with line breaks. Numbers keep their digits, which `JSON.parse` would round. */
export function pretty(text) {
  let [out, depth] = ["", 0];
  const line = () => "\n" + "  ".repeat(depth);
  const parts = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g) ?? [];
  parts.forEach((part, n) => {
    const [before, after] = [parts[n - 1], parts[n + 1]];
    if (part === "{" || part === "[") {
      depth += 1;
      out += part + (after === "}" || after === "]" ? "" : line());
    } else if (part === "}" || part === "]") {
      depth -= 1;
      out += (before === "{" || before === "[" ? "" : line()) + part;
    } else out += part === "," ? part + line() : part === ":" ? ": " : part;
  });
  return out;
}

/** A field for a parameter, filled with its example. */
function input({ name, in: place, schema, required }) {
  const given = { name: `${place}:${name}`, autocomplete: "off", spellcheck: "false" };
  if (required) given.required = "";
  if (schema.default !== undefined) given.placeholder = String(schema.default);
  const choices = ["", "true", "false"].map((value) => el("option", { value }, value || `default: ${schema.default}`));
  const field = schema.type === "boolean" ? el("select", { name: given.name }, ...choices) : el("input", given);
  if (place === "path" || required || schema.examples) field.value = schema.examples?.[0] ?? "";
  return el("label", {}, el("code", {}, name), ` ${place}`, field);
}

/** The request that the fields of a form describe. */
function requestOf(form, method, path) {
  const given = [...new FormData(form)].filter(([, value]) => value !== "");
  const of = (place) =>
    given.filter(([name]) => name.startsWith(`${place}:`)).map(([name, value]) => [name.slice(place.length + 1), value]);
  const target = of("path").reduce((found, [name, value]) => found.replace(`{${name}}`, () => encodeURIComponent(value)), path);
  const query = new URLSearchParams(of("query")).toString();
  const headers = Object.fromEntries(of("header"));
  if (key) headers.authorization = `Bearer ${key}`;
  const body = of("body")[0]?.[1];
  if (body !== undefined) headers["content-type"] = "application/json";
  return [target + (query && `?${query}`), { method, headers, body, cache: "no-store", credentials: "omit" }];
}

/** Show a stream as it comes, up to a number of events. */
async function follow(answer, pre, abort) {
  let events = 0;
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    pre.append(part.value);
    events += part.value.split("\n\n").length - 1;
    if (events >= MOST_EVENTS || pre.textContent.length > MOST_SHOWN) {
      pre.append(`\n… stopped after ${events} events\n`);
      return abort.abort();
    }
  }
}

async function show(answer, started, shown, abort) {
  const took = Math.round(performance.now() - started);
  const told = TOLD.filter((name) => answer.headers.has(name)).map((name) => el("div", {}, `${name}: ${answer.headers.get(name)}`));
  const pre = el("pre", { tabindex: "0" });
  const status = el("strong", { class: answer.ok ? "good" : "bad" }, `${answer.status}`);
  shown.replaceChildren(el("p", {}, status, ` ${answer.statusText} in ${took} ms`), el("div", { class: "soft call" }, ...told), pre);
  if (answer.headers.get("content-type")?.startsWith("text/event-stream")) return follow(answer, pre, abort);
  const text = await answer.text();
  const whole = answer.headers.get("content-type")?.includes("json") ? pretty(text) : text;
  pre.append(whole.length > MOST_SHOWN ? `${whole.slice(0, MOST_SHOWN)}\n… ${whole.length} characters in all` : whole);
  if (answer.status === 401) shown.append(el("p", {}, "The field “Key” at the top of the page takes a key."));
  return undefined;
}

/** The form of one operation, made when it is opened first. */
export function trial(method, path, operation, example) {
  const streams = operation.responses["200"]?.content?.["text/event-stream"] !== undefined;
  const shown = el("div", { class: "answer", "aria-live": "polite" });
  const text = example === undefined ? "" : JSON.stringify(example, null, 2);
  const body = operation.requestBody
    ? el("label", {}, "Body", el("textarea", { name: "body:", rows: String(Math.min(12, text.split("\n").length + 1)), spellcheck: "false" }, text))
    : null;
  const send = el("button", { class: "send" }, "Send");
  const stop = el("button", { type: "button", hidden: "" }, "Stop");
  const sure = el("button", { type: "button", class: "sure" }, "Send anyway");
  const not = el("button", { type: "button" }, "Cancel");
  const ask = el("p", { class: "ask", hidden: "" }, "This removes data for good. ", sure, " ", not);
  const form = el("form", {}, ...(operation.parameters ?? []).map(input), body, el("p", {}, send, " ", stop), ask, shown);

  async function go() {
    const abort = new AbortController();
    stop.onclick = () => abort.abort();
    [ask.hidden, send.disabled, stop.hidden] = [true, true, !streams];
    const [target, how] = requestOf(form, method.toUpperCase(), path);
    if (streams) how.headers.accept = "text/event-stream";
    const patience = streams ? undefined : setTimeout(() => abort.abort(), PATIENCE_MS);
    const started = performance.now();
    shown.replaceChildren(el("p", { class: "soft" }, "Waiting for an answer…"));
    try {
      await show(await fetch(target, { ...how, signal: abort.signal }), started, shown, abort);
    } catch (error) {
      const why = streams && abort.signal.aborted ? "Stopped." : `No answer: ${error.message}`;
      if (!(streams && abort.signal.aborted)) shown.replaceChildren();
      shown.append(el("p", { class: "soft" }, why));
    }
    clearTimeout(patience);
    [send.disabled, stop.hidden] = [false, true];
  }

  form.onsubmit = (event) => {
    event.preventDefault();
    if (!operation["x-deletes"]) return go();
    [ask.hidden, send.disabled] = [false, true];
    return sure.focus();
  };
  sure.onclick = go;
  not.onclick = () => ([ask.hidden, send.disabled] = [true, false]);
  return form;
}

/** What opens the form. Nothing is sent before the button is pressed. */
export function tryIt(method, path, operation, example) {
  const details = el("details", { class: "try" }, el("summary", {}, ...prose("Try it")));
  details.ontoggle = () => {
    if (details.open && details.children.length === 1) details.append(trial(method, path, operation, example));
  };
  return details;
}
