/** `Topics`: the operations of the service. */

import { claim, type ClaimOptions, type Jobs, named } from "./claiming.js";
import { type Answer, type CallOptions, Connection, type Input, type OperationName } from "./connection.js";
import { type EndpointOptions, resolve } from "./endpoint.js";
import { type Claimed, type NewRecord, type Published, type Schemas } from "./items.js";
import { type Camel, camel, snake } from "./names.js";
import {
  type BatchOptions,
  type Config,
  Publisher,
  publishAll,
  type PublishOptions,
  type RecordOptions,
} from "./publishing.js";
import { defined, Reading, type ReadOptions } from "./reading.js";
import { Tail, type TailOptions, type Topics as TailTopics } from "./tailing.js";
import { type Handler, Worker, type WorkOptions } from "./working.js";

export interface ClientOptions extends EndpointOptions {
  /**
   * How long a request is repeated while the service is away or busy, 60 s if absent; a batch of records that may
   * have been written, at most 100 s, as topics forget its key after their idempotency window, 120 s. Keep it below a window
   * that is shorter.
   */
  patienceMs?: number;
  /** In place of the global one. */
  fetch?: typeof globalThis.fetch;
  /** In place of the global one, which Node has from version 22 on. */
  WebSocket?: typeof globalThis.WebSocket;
  /** Parses answers, in place of `JSON.parse`: for example, one that keeps all digits of numbers. */
  parse?: (text: string) => unknown;
  /** Gets a line when the service has not answered for two seconds and requests are repeated; `console.warn` if absent. */
  warn?: (text: string) => void;
}

/** A tag, or `["tag", "Eq" | "Glob", text]`; a Glob ends with `*`. */
export type Match = string | ["tag", "Eq" | "Glob", string];

const OPTIONS = ["token", "context", "patienceMs", "fetch", "WebSocket", "parse", "warn", "key"];

/** A client of one service. */
export class Topics {
  readonly connection: Connection;

  /** Without a URL or a token, in Node: those of TOPICS_URL and TOPICS_TOKEN, or of a context of the command line. */
  constructor(url?: string, options: ClientOptions = {}) {
    const wrong = Object.keys(options).find((name) => !OPTIONS.includes(name));
    if (wrong !== undefined) throw new TypeError(`Topics has no ${JSON.stringify(wrong)}; it has ${OPTIONS.join(", ")}`);
    const { patienceMs = 60_000, parse = JSON.parse, warn = console.warn } = options;
    const fetch = options.fetch ?? ((...of: Parameters<typeof globalThis.fetch>) => globalThis.fetch(...of));
    const WebSocket = options.WebSocket ?? globalThis.WebSocket;
    this.connection = new Connection({ ...resolve(url, options), patienceMs, fetch, WebSocket, parse, warn });
  }

  /** Any operation of the OpenAPI document, by its name: `call("topic_state", { path: { topic: "jobs" } })`. */
  call<N extends OperationName>(name: N, input: Input<N>, options?: CallOptions): Promise<Answer<N>> {
    return this.connection.call(name, input, options);
  }

  // Records

  /** Append a record. It is written once, whatever happens to answers. */
  publish(topic: string, data: unknown, options: PublishOptions & RecordOptions = {}): Promise<Published> {
    const { tag, meta, delayMs } = options;
    return publishAll(this.connection, topic, [{ data, ...defined({ tag, meta, delayMs }) }], options);
  }

  /** Append records in batches, one after the other. An error leaves the batches before it written. */
  publishAll(
    topic: string,
    records: Iterable<NewRecord> | AsyncIterable<NewRecord>,
    options: PublishOptions = {},
  ): Promise<Published> {
    return publishAll(this.connection, topic, records, options);
  }

  /** Gathers records into batches: `await publisher.send(data)`, and `await publisher.close()` at the end. */
  publisher(topic: string, options: BatchOptions = {}): Publisher {
    return new Publisher(this.connection, topic, options);
  }

  /** The records after `fromSeq`, or after a named cursor, up to the head. */
  read<T = unknown>(topic: string, options: ReadOptions<T> = {}): Reading<T> {
    return new Reading<T>(this.connection, topic, options);
  }

  /** Records as they are written, of one topic or of many. */
  tail<T = unknown>(topics: TailTopics, options: TailOptions<T> = {}): Tail<T> {
    return new Tail<T>(this.connection, topics, options);
  }

  /** Delete records before a seq, by tag, or both; how many there were. */
  async deleteRecords(topic: string, which: { beforeSeq?: number; match?: Match }): Promise<number> {
    const { beforeSeq: before_seq, match } = which;
    const body = defined({ before_seq, match }) as Schemas["DeleteRequest"];
    // A deletion by tag alone means the records of its time: done again, it would take later ones.
    const repeat = before_seq !== undefined;
    return (await this.call("delete_records", { path: { topic }, body }, { repeat })).deleted;
  }

  // Topics

  /** Create a topic, or change the named fields of its configuration; the whole configuration. */
  async configure(topic: string, config: Config = {}): Promise<Camel<Schemas["TopicConfig"]>> {
    return camel((await this.call("configure_topic", { path: { topic }, body: snake(config) })).config);
  }

  async state(topic: string): Promise<Camel<Schemas["TopicState"]>> {
    return camel(await this.call("topic_state", { path: { topic } }));
  }

  /** All topics whose names begin with `prefix`. */
  async *topics(prefix = ""): AsyncGenerator<Camel<Schemas["TopicEntry"]>, void, undefined> {
    const turn = (cursor: string) => this.call("list_topics", { query: { prefix, cursor } });
    for await (const page of pages(turn)) yield* camel(page.topics);
  }

  /** Whether there was one. */
  async deleteTopic(topic: string, { ifEmpty: if_empty = false } = {}): Promise<boolean> {
    return (await this.call("delete_topic", { path: { topic }, query: { if_empty } })).deleted;
  }

  // Cursors

  async cursor(topic: string, cursor: string): Promise<Camel<Schemas["CursorState"]>> {
    return camel(await this.call("get_cursor", { path: { topic, cursor } }));
  }

  /** Move a cursor; backwards only with `force`. */
  async setCursor(topic: string, cursor: string, seq: number, { force = false } = {}): Promise<Camel<Schemas["CursorState"]>> {
    return camel(await this.call("put_cursor", { path: { topic, cursor }, body: { seq, force } }));
  }

  async *cursors(topic: string): AsyncGenerator<Camel<Schemas["CursorEntry"]>, void, undefined> {
    const turn = (cursor: string) => this.call("list_cursors", { path: { topic }, query: { cursor } });
    for await (const page of pages(turn)) yield* camel(page.cursors);
  }

  /** Whether there was one. */
  async deleteCursor(topic: string, cursor: string): Promise<boolean> {
    return (await this.call("delete_cursor", { path: { topic, cursor } })).deleted;
  }

  // Routers

  async setRouter(
    router: string,
    config: Camel<Schemas["RouterPatch"]> | Schemas["RouterPatch"],
  ): Promise<Camel<Schemas["RouterPut"]>> {
    return camel(await this.call("put_router", { path: { router }, body: snake(config) }));
  }

  async router(router: string): Promise<Camel<Schemas["RouterState"]>> {
    return camel(await this.call("get_router", { path: { router } }));
  }

  async *routers(
    query: { prefix?: string; source?: string; dest?: string } = {},
  ): AsyncGenerator<Camel<Schemas["RouterEntry"]>, void, undefined> {
    const turn = (cursor: string) => this.call("list_routers", { query: { ...query, cursor } });
    for await (const page of pages(turn)) yield* camel(page.routers);
  }

  /** Whether there was one. */
  async deleteRouter(router: string): Promise<boolean> {
    return (await this.call("delete_router", { path: { router } })).deleted;
  }

  // Queues

  /** Do the jobs of a queue: `await client.worker("mail", send).run()`. */
  worker<T = unknown>(queue: string, handler: Handler<T>, options: WorkOptions<T> = {}): Worker<T> {
    return new Worker<T>(this.connection, queue, handler, options);
  }

  /**
   * Lease jobs. The same request first completes the jobs `ack` and gives back the jobs `nack`, with `delayMs` and `reason`.
   * If the claim is refused, it has finished none of them, unless the error's `outcome` is `unknown`.
   */
  claim<T = unknown>(queue: string, node: string, options: ClaimOptions = {}): Promise<Claimed<T>> {
    return claim<T>(this.connection, queue, node, options);
  }

  async ack(queue: string, node: string, jobs: Jobs): Promise<Camel<Schemas["Acked"]>> {
    return camel(await this.call("ack", { path: { topic: queue }, body: { node, ...named(jobs) } }));
  }

  async nack(
    queue: string,
    node: string,
    jobs: Jobs,
    { delayMs: delay_ms = 0, reason }: { delayMs?: number; reason?: string } = {},
  ): Promise<Camel<Schemas["Nacked"]>> {
    return camel(await this.call("nack", { path: { topic: queue }, body: { node, ...named(jobs), delay_ms, ...defined({ reason }) } }));
  }

  async extend(queue: string, node: string, jobs: Jobs, leaseMs: number): Promise<Camel<Schemas["Extended"]>> {
    return camel(await this.call("extend", { path: { topic: queue }, body: { node, ...named(jobs), lease_ms: leaseMs } }));
  }

  /** Look at jobs without leasing any. */
  async peek(queue: string, { firstSeq: first_seq = 0, max = 100 } = {}): Promise<Camel<Schemas["Peeked"]>> {
    return camel(await this.call("peek", { path: { topic: queue }, body: { first_seq, max } }));
  }

  /** Move dead letters back to the queue they came from. */
  async redrive(
    deadLetters: string,
    queue: string,
    options: { firstSeq?: number; lastSeq?: number; match?: Match; max?: number } = {},
  ): Promise<Camel<Schemas["Redriven"]>> {
    const { firstSeq: first_seq, lastSeq: last_seq, match, max } = options;
    const body = { queue, ...defined({ first_seq, last_seq, match, max }) } as Schemas["RedriveRequest"];
    return camel(await this.call("redrive", { path: { topic: deadLetters }, body }, { repeat: false }));
  }

  /** A ticket that opens one stream or WebSocket, once, within a minute: for an EventSource of a page. */
  ticket(path: string): Promise<Schemas["Ticket"]> {
    return this.call("make_ticket", { body: { path } });
  }
}

async function* pages<P extends { next_cursor?: string }>(turn: (cursor: string) => Promise<P>): AsyncGenerator<P, void, undefined> {
  let cursor: string | undefined = "";
  while (cursor !== undefined) {
    const page: P = await turn(cursor);
    yield page;
    cursor = page.next_cursor;
  }
}
