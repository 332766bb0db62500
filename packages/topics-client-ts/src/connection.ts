/**
 * The connection: requests over fetch, and when they are repeated.
 *
 *     no connection, no whole answer, 502, 504        after a pause that doubles, 50 ms to 2 s
 *     429 throttled, 503 not_ready, shutting_down     after the pause that the service asks for, else as above
 *     any other error                                 never
 *
 * A request that must not be carried out twice is repeated only if the error says that it was not carried out. When
 * `patienceMs` has passed since the first failure, or `withinMs` since the first attempt began that may have been carried
 * out, the last error is thrown. After two seconds without an answer `warn` gets one line.
 */

import { errorOf, TopicsError, Unavailable } from "./errors.js";
import { OPERATIONS } from "./operations.js";
import type { operations } from "./schema.js";

/** Longer than the service's own request timeout, after which it answers 503. */
const TIMEOUT_MS = 90_000;
const SHORTEST_PAUSE_MS = 50;
const LONGEST_PAUSE_MS = 2000;
const WARNED_AFTER_MS = 2000;
/** A timer of more ends at once. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;
/** Codes of Node for connections that were not made. A browser tells none. */
const NOT_SENT = new Set(["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "UND_ERR_CONNECT_TIMEOUT"]);

export type OperationName = keyof typeof OPERATIONS;
type Json<C> = C extends { content: { "application/json": infer B } } ? B : never;
type Part<O, K extends string> = O extends { parameters: Record<K, infer P> } ? P : never;
type Optional<K extends string, V> = [V] extends [never] ? unknown : { [N in K]?: V };
type Required_<K extends string, V> = [V] extends [never] ? unknown : { [N in K]: V };

/** What an operation takes: the parts of the path, the query, and the body. */
export type Input<N extends OperationName> = Required_<"path", Part<operations[N], "path">> &
  Optional<"query", NonNullable<operations[N]["parameters"]["query"]>> &
  (operations[N] extends { requestBody: infer B }
    ? { body: Json<B> }
    : operations[N] extends { requestBody?: infer B }
      ? Optional<"body", Json<NonNullable<B>>>
      : unknown);
/** What an operation answers. */
export type Answer<N extends OperationName> = operations[N]["responses"] extends { 200: infer R } ? Json<R> : never;

export interface CallOptions {
  /** Whether the request may be carried out twice; true if absent. */
  repeat?: boolean;
  /** No attempt begins later than this after the first one that may have been carried out; without a bound if absent. */
  withinMs?: number;
  signal?: AbortSignal | undefined;
}

export interface ConnectionOptions {
  url: string;
  token: string | undefined;
  patienceMs: number;
  fetch: typeof globalThis.fetch;
  WebSocket: typeof globalThis.WebSocket | undefined;
  parse: (text: string) => unknown;
  warn: (text: string) => void;
}

/** Wait; throws the signal's reason if that comes first. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const ended = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", ended);
      resolve();
    }, Math.min(ms, LONGEST_TIMER_MS));
    if (signal?.aborted) ended();
    else signal?.addEventListener("abort", ended, { once: true });
  });
}

/** The pauses between the attempts of one request to a service. Without `patienceMs` they continue for ever. */
export class Pauses {
  #failingSince: number | undefined;
  #next = SHORTEST_PAUSE_MS;
  #warned = false;

  constructor(
    private readonly connection: Connection,
    private readonly patienceMs = Infinity,
  ) {}

  /**
   * Wait before the next attempt. Throws `error` if it cannot succeed later, the patience is over, or the attempt would begin
   * after `latest`, a time of `performance.now()`.
   */
  async after(error: unknown, signal?: AbortSignal, latest = Infinity): Promise<void> {
    if (!(error instanceof TopicsError) || !error.transient) throw error;
    const pause = Math.max(error.retryAfterMs ?? 0, this.#next * (0.5 + Math.random() / 2));
    this.#next = Math.min(2 * this.#next, LONGEST_PAUSE_MS);
    const now = performance.now();
    this.#failingSince ??= now;
    const left = Math.min(this.patienceMs - (now - this.#failingSince), latest - now);
    if (pause > left) throw error;
    if (!this.#warned && now + pause >= this.#failingSince + WARNED_AFTER_MS && left > 2 * WARNED_AFTER_MS) {
      this.#warned = true;
      const howLong = left === Infinity ? "" : ` for ${Math.round(left / 1000)} s`;
      this.connection.options.warn(`${this.connection.url}: no answer yet (${error.message}); trying again${howLong}`);
    }
    await sleep(pause, signal);
  }

  /** The service has answered. */
  reset(): void {
    this.#failingSince = undefined;
    this.#next = SHORTEST_PAUSE_MS;
    this.#warned = false;
  }
}

/** Requests to one service. */
export class Connection {
  readonly url: string;
  readonly options: ConnectionOptions;

  constructor(options: ConnectionOptions) {
    this.url = options.url.replace(/\/+$/, "");
    // Not enumerable: a client that is printed or stored as JSON does not show its key.
    this.options = Object.defineProperty({ ...options }, "token", { enumerable: false });
  }

  /** Carry out an operation until it is answered, and return the answer. */
  async call<N extends OperationName>(name: N, input: Input<N>, options: CallOptions = {}): Promise<Answer<N>> {
    const { path = {}, query = {}, body } = input as {
      path?: Record<string, string>;
      query?: Record<string, unknown>;
      body?: object;
    };
    const [method, template] = OPERATIONS[name];
    const filled = template.replace(/\{(\w+)\}/g, (_, part: string) => segment(path[part] ?? ""));
    const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null);
    const search = new URLSearchParams(given.map(([key, value]) => [key, String(value)])).toString();
    const text = body === undefined ? undefined : JSON.stringify(body);
    return (await this.send(method, filled + (search && `?${search}`), text, options)) as Answer<N>;
  }

  /** Send a request with a body in JSON until it is answered, and return the answer. */
  async send(method: string, path: string, body: string | undefined, options: CallOptions): Promise<unknown> {
    const { repeat = true, withinMs = Infinity, signal } = options;
    const pauses = new Pauses(this, this.options.patienceMs);
    let latest = Infinity;
    let uncertain = false;
    for (;;) {
      const begun = performance.now();
      try {
        return await this.#once(method, path, body, signal);
      } catch (error) {
        uncertain ||= !(error instanceof TopicsError && error.outcome === "not_done");
        if (uncertain) {
          // Also if an attempt before this one may have been carried out.
          if (error instanceof TopicsError) error.detail["outcome"] = "unknown";
          if (!repeat) throw error;
          latest = Math.min(latest, begun + withinMs);
        }
        await pauses.after(error, signal, latest);
      }
    }
  }

  /** Open a stream of events. */
  async open(path: string, headers: Record<string, string>, signal: AbortSignal): Promise<Response> {
    const response = await this.#fetch("GET", path, { accept: "text/event-stream", ...headers }, undefined, signal);
    if (response.status === 200) return response;
    await this.#answer(response, signal);
    throw new Unavailable(`HTTP status ${response.status} in place of a stream`, { status: response.status });
  }

  async #once(method: string, path: string, body: string | undefined, signal?: AbortSignal): Promise<unknown> {
    const limit = new AbortController();
    const timer = setTimeout(() => limit.abort(new Error(`no answer in ${TIMEOUT_MS} ms`)), TIMEOUT_MS);
    const forward = () => limit.abort(signal?.reason);
    if (signal?.aborted) forward();
    signal?.addEventListener("abort", forward);
    try {
      const headers: Record<string, string> = { accept: "application/json" };
      if (body !== undefined) headers["content-type"] = "application/json";
      return await this.#answer(await this.#fetch(method, path, headers, body, limit.signal, signal), signal);
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", forward);
    }
  }

  async #fetch(
    method: string,
    path: string,
    headers: Record<string, string>,
    body: string | undefined,
    signal: AbortSignal,
    asked: AbortSignal | undefined = signal,
  ): Promise<Response> {
    const { token, fetch } = this.options;
    if (token !== undefined) headers["authorization"] = `Bearer ${token}`;
    let response: Response;
    try {
      // A redirect would be followed with GET in place of POST, and its answer taken for that of the write.
      response = await fetch(this.url + path, { method, headers, body: body ?? null, signal, redirect: "manual" });
    } catch (error) {
      throw asked?.aborted ? asked.reason : unavailable(error);
    }
    const { status, type } = response;
    if (type !== "opaqueredirect" && !(status >= 300 && status < 400)) return response;
    response.body?.cancel().catch(() => undefined);
    const to = response.headers.get("location"); // which a browser does not tell
    throw new TopicsError(`${this.url} redirects${to === null ? "" : ` to ${to}`}: give the client the URL of the service`, { status });
  }

  async #answer(response: Response, signal: AbortSignal | undefined): Promise<unknown> {
    let text: string;
    try {
      text = await response.text();
    } catch (error) {
      throw signal?.aborted ? signal.reason : unavailable(error);
    }
    let body: unknown;
    try {
      body = this.options.parse(text);
    } catch {
      if (response.ok) throw new Unavailable("the answer is not JSON", { status: response.status });
    }
    if (response.ok) return body;
    throw errorOf(response.status, body, response.headers.get("retry-after"));
  }
}

/** A name as a segment of a path. Throws `TypeError` for those that a URL takes for this folder or the one above. */
export function segment(name: string): string {
  if (/^\.\.?$/.test(name)) throw new TypeError(`${JSON.stringify(name)} is a name that fetch cannot ask for`);
  return encodeURIComponent(name);
}

/** The error of a fetch that threw. */
export function unavailable(error: unknown): Unavailable {
  const { message, cause } = error as { message?: string; cause?: { code?: string; message?: string } };
  const outcome = NOT_SENT.has(cause?.code ?? "") ? "not_done" : "unknown";
  return new Unavailable(cause?.message || message || String(error), { detail: { outcome } });
}

/** 32 hexadecimal digits. */
export function randomName(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
