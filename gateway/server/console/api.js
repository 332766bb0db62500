// Requests to the service. The key is kept in this module only: never in an address, a cookie or a store.

import {withRecords} from "./json.js";

export const PAGE_ROWS = 100;
export const MOST_ROWS = 1000;
const PATIENCE_MS = 20000;
const ELSE = "Something else answers in place of the service.";
let key = "";

export const access = new EventTarget();
export const hasKey = () => key !== "";

export function useKey(given) {
  key = given.trim();
  access.dispatchEvent(new Event("change"));
}

// An answer that is no success, with the service's own sentence.
export class Refused extends Error {
  constructor(status, error, retryAfter = 0) {
    super(error.message);
    this.status = status;
    this.code = error.code;
    this.detail = error.detail ?? {};
    this.retryAfter = retryAfter;
  }

  get remedy() {
    if (this.status === 401) return "Give the console a key: the button “Key”, or Shift+K.";
    if (this.status === 403) return "Another key may be allowed to do this.";
    if (this.status === 429) return `The console tries again in ${this.retryAfter || 1} s; the limit is a setting of the service.`;
    if (this.status === 503) return "The console tries again by itself; topics of other shards are served meanwhile.";
    return "";
  }
}

export class Unreachable extends Error {
  constructor(message = "The service does not answer.") {
    super(message);
    this.status = 0;
    this.code = "unreachable";
  }

  get remedy() {
    return "The console tries again by itself. Whether the service runs: topics status.";
  }
}

async function ask(method, path, body, headers = {}) {
  if (key) headers.authorization = "Bearer " + key;
  if (body !== undefined) headers["content-type"] = "application/json";
  let answer, text;
  try {
    const signal = AbortSignal.timeout(PATIENCE_MS);
    answer = await fetch(path, {method, headers, body, signal, cache: "no-store", credentials: "omit"});
    text = await answer.text();
  } catch {
    throw new Unreachable();
  }
  if (answer.ok && !/json/.test(answer.headers.get("content-type"))) throw new Unreachable(ELSE);
  if (answer.ok) return text;
  let error = {code: "unknown", message: `The service answered ${answer.status}.`};
  try {
    error = JSON.parse(text).error ?? error;
  } catch {
    // Not from the service: a proxy, say.
  }
  const refused = new Refused(answer.status, error, Number(answer.headers.get("retry-after")) || 0);
  if (refused.status === 401) access.dispatchEvent(new Event("refused"));
  throw refused;
}

// An answer, read. What is no JSON is not from the service.
function read(answer, parse = JSON.parse) {
  try {
    return parse(answer);
  } catch {
    throw new Unreachable(ELSE);
  }
}

const text = body => (body === undefined || typeof body === "string" ? body : JSON.stringify(body));
const query = parameters => {
  const given = Object.entries(parameters).filter(([, value]) => value !== "" && value !== undefined);
  return given.length ? "?" + new URLSearchParams(given) : "";
};

export const topicPath = topic => "/v0/topics/" + encodeURIComponent(topic);
export const get = async (path, parameters = {}, headers = {}) =>
  read(await ask("GET", path + query(parameters), undefined, headers));
export const post = async (path, body, headers = {}) => read(await ask("POST", path, text(body), headers));
export const put = async (path, body) => read(await ask("PUT", path, text(body)));
export const remove = async (path, parameters = {}) => read(await ask("DELETE", path + query(parameters)));
export const metrics = () => get("/v0/metrics", {}, {accept: "application/json"});
export const records = async (topic, asked) => read(await ask("POST", topicPath(topic) + "/diff", text(asked)), withRecords);
export const jobs = async (topic, asked) => read(await ask("POST", topicPath(topic) + "/peek", text(asked)), each => withRecords(each, "jobs"));

// Every page of a list, up to `most` entries; `told` hears how many there are so far.
export async function walk(path, list, parameters, most, told = () => {}) {
  const found = [];
  let cursor = "";
  do {
    const page = await get(path, {...parameters, page_size: Math.min(MOST_ROWS, most - found.length), cursor});
    found.push(...page[list]);
    cursor = page.next_cursor ?? "";
    told(found.length);
  } while (cursor && found.length < most);
  return {found, whole: !cursor};
}

// An event stream. A ticket in its address stands for the key, once; so each connection asks for another one.
export async function stream(path) {
  return new EventSource(key ? (await post("/v0/tickets", {path})).url : path);
}
