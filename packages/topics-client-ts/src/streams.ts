/** The two transports of a tail: an event stream read with fetch, and a WebSocket. Each gives frames until it breaks. */

import { type Connection, unavailable } from "./connection.js";
import { errorOfCode, NotFound, Unauthorized, Unavailable } from "./errors.js";

/** A frame: its kind (`record`, `tombstone`, `caught-up`, `topic-deleted`), its fields, and the id if it has one. */
export interface Frame {
  event: string;
  id: string | undefined;
  told: any;
}

/** Something that gives frames. `next` throws `TopicsError` when it breaks, ends or is silent for too long. */
export interface Frames {
  next(): Promise<Frame>;
  close(): void;
}

/** The parser of `text/event-stream`: text in, `(event, id, data)` out. Comments and `retry` are passed over. */
export class EventLines {
  #rest = "";
  #event = "message";
  #id: string | undefined;
  #data: string[] = [];

  feed(text: string): { event: string; id: string | undefined; data: string }[] {
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop() ?? "";
    const found = [];
    for (const line of lines.map((each) => each.replace(/\r$/, ""))) {
      const [, name, value] = /^([^:]*):? ?(.*)$/s.exec(line) ?? [];
      if (name === "data") this.#data.push(value ?? "");
      else if (name === "event") this.#event = value ?? "";
      else if (name === "id") this.#id = value;
      else if (line === "") {
        if (this.#data.length > 0) found.push({ event: this.#event, id: this.#id, data: this.#data.join("\n") });
        this.#event = "message";
        this.#id = undefined;
        this.#data = [];
      }
    }
    return found;
  }
}

/** The event stream of a watch session. */
export class EventFrames implements Frames {
  readonly #lines = new EventLines();
  readonly #decoder = new TextDecoder();
  #ready: Frame[] = [];

  private constructor(
    private readonly reader: ReadableStreamDefaultReader<Uint8Array>,
    private readonly abort: AbortController,
    private readonly parse: (text: string) => unknown,
    private readonly silenceMs: number,
  ) {}

  static async open(connection: Connection, path: string, id: string | undefined, silenceMs: number): Promise<EventFrames> {
    const abort = new AbortController();
    const timer = setTimeout(() => abort.abort(new Unavailable("the stream is silent")), silenceMs);
    try {
      const headers: Record<string, string> = id === undefined ? {} : { "last-event-id": id };
      const response = await connection.open(path, headers, abort.signal);
      if (response.body === null) throw new Unavailable("the stream has no body");
      return new EventFrames(response.body.getReader(), abort, connection.options.parse, silenceMs);
    } finally {
      clearTimeout(timer);
    }
  }

  async next(): Promise<Frame> {
    for (;;) {
      const frame = this.#ready.shift();
      if (frame !== undefined) return frame;
      const text = await this.#read();
      this.#ready = this.#lines.feed(text).map(({ event, id, data }) => ({ event, id, told: this.parse(data) }));
    }
  }

  async #read(): Promise<string> {
    const timer = setTimeout(() => this.abort.abort(new Unavailable("the stream is silent")), this.silenceMs);
    try {
      const { done, value } = await this.reader.read();
      if (done) throw new Unavailable("the stream ended");
      return this.#decoder.decode(value, { stream: true });
    } catch (error) {
      throw error instanceof Unavailable ? error : unavailable(error);
    } finally {
      clearTimeout(timer);
    }
  }

  close(): void {
    this.abort.abort(new Unavailable("the stream was closed"));
    this.reader.cancel().catch(() => undefined);
  }
}

/** Items that a socket may have received and the caller not taken. Beyond it the socket is closed; the tail resumes. */
const MOST_WAITING = 1000;

/** A WebSocket that subscribes to topics. A ticket opens it, because browsers send no key with it. */
export class SocketFrames implements Frames {
  #ready: Frame[] = [];
  #failure: Error | undefined;
  #wake: () => void = () => undefined;
  #timer: ReturnType<typeof setInterval> | undefined;
  #heardAt = performance.now();

  private constructor(
    private readonly socket: WebSocket,
    private readonly parse: (text: string) => unknown,
    heartbeatMs: number,
  ) {
    socket.onmessage = ({ data }) => {
      try {
        this.#take(String(data));
      } catch (error) {
        this.#fail(error as Error); // thrown here, it would end the program
      }
    };
    socket.onclose = ({ code, reason }) => this.#fail(new Unavailable(`the socket was closed (${code} ${reason})`));
    socket.onerror = () => this.#fail(new Unavailable("the socket failed", { detail: { outcome: "unknown" } }));
    this.#timer = setInterval(() => {
      if (performance.now() - this.#heardAt > 2 * heartbeatMs + 5000) this.#fail(new Unavailable("the socket is silent"));
      else if (socket.readyState === 1) socket.send('{"op":"ping"}');
    }, heartbeatMs);
  }

  static async open(connection: Connection, subscribe: object, heartbeatMs: number): Promise<SocketFrames> {
    const { WebSocket, token, parse } = connection.options;
    if (WebSocket === undefined) throw new TypeError("there is no WebSocket here: give one to the client, or use events");
    let path = "/v0/ws";
    if (token !== undefined) path = (await connection.call("make_ticket", { body: { path } })).url;
    const frames = new SocketFrames(new WebSocket(connection.url.replace(/^http/, "ws") + path), parse, heartbeatMs);
    frames.socket.onopen = () => frames.socket.send(JSON.stringify({ op: "subscribe", request_id: "s", ...subscribe }));
    return frames;
  }

  #take(text: string): void {
    this.#heardAt = performance.now();
    const told = this.parse(text) as { op: string; request_id?: string; code?: string; message?: string; retry_after_ms?: number };
    if (told.op === "pong") return;
    if (told.op === "error") {
      // Not an answer to the subscribe, it is advice: the service is slow and continues by itself.
      if (told.code === "throttled" && told.request_id === undefined) return;
      const facts = { retryAfterMs: told.retry_after_ms };
      const error = errorOfCode(told.code ?? "", told.message ?? "", facts);
      // The service ends the stream, as when the caller is slow; another one takes its place, unless the key is gone.
      const ends = told.request_id === undefined && !error.transient && !(error instanceof Unauthorized);
      return this.#fail(ends ? new Unavailable(`the stream ends with ${error.code}: ${error.message}`, facts) : error);
    }
    if (this.#ready.length >= MOST_WAITING) return this.#fail(new Unavailable("the caller is slower than the socket"));
    this.#ready.push({ event: told.op.replace("_", "-"), id: undefined, told });
    this.#wake();
  }

  #fail(error: Error): void {
    this.#failure ??= error;
    this.#end();
    this.#wake();
  }

  async next(): Promise<Frame> {
    while (this.#ready.length === 0) {
      if (this.#failure !== undefined) throw this.#failure;
      await new Promise<void>((resolve) => (this.#wake = resolve));
    }
    return this.#ready.shift() as Frame;
  }

  #end(): void {
    clearInterval(this.#timer);
    const { socket } = this;
    socket.onmessage = socket.onclose = socket.onerror = socket.onopen = null;
    if (socket.readyState < 2) socket.close();
  }

  close(): void {
    this.#fail(new Unavailable("the socket was closed"));
  }
}

/** An error frame: 429 is advice, 404 and 410 tell that the session is gone, all others that the stream ends. */
export function checkError(told: { code?: number; error?: string; retry_after_ms?: number }): void {
  const text = told.error ?? "";
  if (told.code === 404 || told.code === 410) throw new NotFound(text);
  const facts = { retryAfterMs: told.retry_after_ms };
  if (told.code !== 429) throw new Unavailable(`the stream ends with ${told.code}: ${text}`, facts);
}
