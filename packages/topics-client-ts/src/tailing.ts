/**
 * Tailing topics: a stream that resumes automatically after every loss of its connection or session.
 *
 *     the stream breaks or ends, or the service is away    the same session again, with the id of the last frame
 *     the session is gone (404, or an error frame 410)      a new session from the positions
 *     no frame came since the session was made              a new session: the old one may have sent what was lost
 *     the cursor cannot be stored for now                   it is stored with the next items
 *     a WebSocket breaks                                    another one, from the positions
 *     a topic is gone when a session is made again          `TopicDeleted`
 *
 * A position is the seq up to which frames came. Records and gaps at or below it are dropped, so none is given twice.
 */

import { type Connection, Pauses } from "./connection.js";
import { CursorNotFound, GapError, NotFound, TopicNotFound, TopicsError, Unavailable } from "./errors.js";
import { decoded, type Gap, gapOf, recordOf, type Schemas, type TopicDeleted, type TopicRecord } from "./items.js";
import { defined, type Gaps } from "./reading.js";
import { checkError, EventFrames, type Frame, type Frames, SocketFrames } from "./streams.js";

/** How long the end of a loop takes at most to store its cursor. */
const COMMIT_MS = 10_000;

export type Item<T = unknown> = TopicRecord<T> | Gap | TopicDeleted;

export interface TailOptions<T = unknown> {
  /** The records after this seq, or only those that are written from now on; 0 if absent. */
  fromSeq?: number | "now";
  /**
   * Also all topics whose names begin with this, and those made later, from their first record. Without a cursor, and with
   * `fromSeq` 0 or "now".
   */
  prefix?: string;
  /** Begin where this named cursor is, if it exists. */
  cursor?: string;
  /** Store the cursor after each batch of frames and when a loop ends, or only when `commit()` is called. */
  commit?: "auto" | "manual";
  /** An event stream read with fetch, or a WebSocket. */
  transport?: "events" | "websocket";
  /** Leave out records of this node, or of these. */
  node?: string | string[];
  tags?: boolean;
  meta?: boolean;
  /** Records of a frame. */
  limit?: number;
  /** Longest silence of the stream. */
  heartbeatMs?: number;
  /** `strong`: only records that a crash of the machine does not take back. */
  consistency?: "eventual" | "strong";
  gaps?: Gaps;
  /** Makes the data of a record what the program works with, or throws: the `parse` of a zod schema, for example. */
  decode?: (data: unknown) => T;
}

/** Topics to tail; a map says for each where to begin. */
export type Topics = string | string[] | Record<string, number | "now">;

/**
 * An iterator of records as they are written. It begins after the named cursor; without one, or before its first commit,
 * after `fromSeq`. Breaking out of a loop closes the stream; iterating again continues after the last item.
 *
 * An item is done when the next one is asked for. So the item in hand when a loop ends, by `break` or by an error, is not
 * done: the cursor is stored before it, and it is delivered again, unless `commit()` was called.
 */
export class Tail<T = unknown> implements AsyncIterableIterator<Item<T>> {
  /** For each topic, the item that the iterator gave last. */
  readonly positions = new Map<string, number>();
  readonly #start: Map<string, number | "now">;
  readonly #received = new Map<string, number>();
  readonly #committed = new Map<string, number>();
  readonly #pauses: Pauses;
  #items: Item[] = [];
  #inHand: TopicRecord | Gap | undefined;
  #frames: Frames | undefined;
  #streamUrl: string | undefined;
  #lastId: string | undefined;
  #opened = false;
  #begun = false;
  #onlyNew: boolean;
  #closing = new AbortController();

  constructor(
    private readonly connection: Connection,
    topics: Topics,
    private readonly options: TailOptions<T>,
  ) {
    this.#pauses = new Pauses(connection);
    const { fromSeq = 0, prefix, cursor } = options;
    if (prefix !== undefined && (cursor !== undefined || (fromSeq !== "now" && fromSeq > 0))) {
      throw new TypeError("a tail of a prefix has no cursor, and begins with the first records or the new ones");
    }
    this.#onlyNew = fromSeq === "now";
    const named = typeof topics === "string" ? [topics] : topics;
    this.#start = new Map(Array.isArray(named) ? named.map((topic) => [topic, fromSeq]) : Object.entries(named));
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  async next(): Promise<IteratorResult<Item<T>, undefined>> {
    if (this.#closing.signal.aborted) this.#closing = new AbortController();
    const { signal } = this.#closing;
    try {
      await this.begin();
    } catch (error) {
      if (!signal.aborted) throw error;
      return { done: true, value: undefined };
    }
    this.#inHand = undefined;
    while (this.#items.length === 0) {
      for (const [topic, seq] of this.#received) this.positions.set(topic, seq); // the caller asks for more: all is done
      await this.#commitDone().catch((error: unknown) => {
        if (!(error instanceof TopicsError && error.transient)) throw error; // else it is stored with the next items
      });
      if (this.#closing.signal.aborted || this.#empty) return this.return();
      await this.#receive();
    }
    const item = this.#items.shift() as Item;
    if (item.kind === "deleted") {
      this.positions.delete(item.topic);
      return { done: false, value: item };
    }
    this.positions.set(item.topic, item.seq);
    this.#inHand = item;
    try {
      if (item.kind === "record") return { done: false, value: decoded(item, this.options.decode) };
      if (this.options.gaps !== "yield") throw new GapError(item);
      return { done: false, value: item };
    } catch (error) {
      await this.#commitDone().catch(() => undefined); // a loop does not call `return` after an error of `next`
      throw error;
    }
  }

  /** Whether all topics are deleted. */
  get #empty(): boolean {
    return this.#received.size === 0 && this.options.prefix === undefined;
  }

  /** The end of a loop: it stores the cursor before the item in hand, and closes the stream. */
  async return(): Promise<IteratorResult<Item<T>, undefined>> {
    this.close();
    const limit = new AbortController();
    const timer = setTimeout(() => limit.abort(new Unavailable(`the cursor was not stored in ${COMMIT_MS} ms`)), COMMIT_MS);
    try {
      await this.#commitDone(limit.signal);
    } finally {
      clearTimeout(timer);
    }
    return { done: true, value: undefined };
  }

  /** Close the stream; a `next()` that waits ends. The service forgets the session by itself. */
  close(): void {
    this.#closing.abort(new Error("the tail was closed"));
    this.#drop();
  }

  #drop(): void {
    this.#frames?.close();
    this.#frames = undefined;
  }

  /** Find the place to begin, so that records written from now on are given. `next()` does it, too. */
  async begin(): Promise<void> {
    if (this.#begun) return;
    const { cursor } = this.options;
    for (const topic of cursor === undefined ? [] : this.#start.keys()) {
      try {
        const input = { path: { topic, cursor: cursor as string } };
        this.#start.set(topic, (await this.connection.call("get_cursor", input, { signal: this.#closing.signal })).seq);
      } catch (error) {
        if (!(error instanceof CursorNotFound)) throw error;
      }
    }
    await this.#makeSession(this.#start, false);
    this.#begun = true;
    for (const [topic, seq] of this.#received) {
      this.positions.set(topic, seq);
      // Where only new records were asked for, nothing is stored yet: the next run would begin at a later head.
      if (this.#start.get(topic) !== "now") this.#committed.set(topic, seq);
    }
  }

  /** Store the positions under the cursor's name: all items that the iterator gave are done. */
  async commit(): Promise<void> {
    const { cursor } = this.options;
    if (cursor === undefined) throw new TypeError("a tail without a cursor has nothing to commit to");
    this.#inHand = undefined;
    await this.#store(cursor, this.positions);
  }

  /** Store the positions before the item in hand. */
  async #commitDone(signal?: AbortSignal): Promise<void> {
    const { cursor, commit } = this.options;
    if (cursor === undefined || commit === "manual" || !this.#begun) return;
    const done = new Map(this.positions);
    const item = this.#inHand;
    if (item !== undefined) done.set(item.topic, (item.kind === "gap" ? item.firstSeq : item.seq) - 1);
    await this.#store(cursor, done, signal);
  }

  async #store(cursor: string, positions: Map<string, number>, signal?: AbortSignal): Promise<void> {
    for (const [topic, seq] of [...positions]) {
      if (this.#committed.get(topic) === seq) continue;
      try {
        await this.connection.call("put_cursor", { path: { topic, cursor }, body: { seq } }, { signal });
      } catch (error) {
        const recreated = error instanceof TopicsError && Number(error.detail["head_seq"] ?? seq) < seq; // it ends before the cursor
        if (!recreated && !(error instanceof NotFound)) throw error; // else the topic was deleted, and its cursor with it
      }
      this.#committed.set(topic, seq);
    }
  }

  #watch(positions: Map<string, number | "now">): Schemas["WatchRequest"] {
    const { node, tags: include_tags = true, meta: include_meta, limit, consistency, prefix } = this.options;
    const from = (seq: number | "now") => (seq === "now" ? { tail: true } : { from_seq: seq });
    const topics = Object.fromEntries([...positions].map(([topic, seq]) => [topic, from(seq)]));
    const heartbeat_ms = this.#heartbeatMs;
    const wildcard = prefix === undefined ? {} : { prefix, tail: this.#onlyNew };
    return { topics, include_tags, heartbeat_ms, ...wildcard, ...defined({ node, include_meta, limit, consistency }) };
  }

  get #heartbeatMs(): number {
    return this.options.heartbeatMs ?? 15_000;
  }

  /** Make a watch session. A WebSocket needs none, but this says where its topics begin. */
  async #makeSession(positions: Map<string, number | "now">, lenient: boolean): Promise<void> {
    let told: { topics: Schemas["Watch"]["topics"]; stream_url?: string };
    try {
      const input = { query: { lenient }, body: this.#watch(positions) };
      told = await this.connection.call("watch", input, { signal: this.#closing.signal });
    } catch (error) {
      if (!(lenient && error instanceof TopicNotFound)) throw error;
      told = { topics: {} };
    }
    this.#resolved(positions, told.topics);
    this.#onlyNew = false; // what a later session finds besides was made meanwhile
    this.#streamUrl = told.stream_url;
    this.#lastId = undefined;
    this.#opened = false;
  }

  /** Take in where topics begin; those that are not there are deleted. */
  #resolved(asked: Map<string, number | "now">, found: Schemas["Watch"]["topics"]): void {
    for (const [topic, seq] of [...asked]) {
      const state = found[topic];
      if (state === undefined) this.#deleted(topic);
      else this.#received.set(topic, seq === "now" ? state.from_seq : seq);
    }
    for (const [topic, state] of Object.entries(found)) {
      if (!asked.has(topic)) this.#received.set(topic, state.from_seq);
    }
  }

  #deleted(topic: string): void {
    this.#items.push({ kind: "deleted", topic, seq: this.#received.get(topic) ?? 0 });
    this.#received.delete(topic);
  }

  /** Take one frame of the stream, open it if it is not, or wait after a failure. */
  async #receive(): Promise<void> {
    const { signal } = this.#closing;
    try {
      this.#frames ??= await this.#open();
      if (signal.aborted) return this.#drop();
      if (this.#items.length > 0) return; // a new session has shown deleted topics, and its stream may be silent
      const frame = await this.#frames?.next();
      if (frame === undefined) return;
      this.#take(frame);
      this.#lastId = frame.id ?? this.#lastId;
      if (frame.event !== "subscribed") this.#pauses.reset(); // a socket may end after that each time
    } catch (error) {
      this.#drop();
      const gone = error instanceof NotFound && !(error instanceof TopicNotFound);
      if (gone) this.#streamUrl = undefined;
      const failure = gone ? new Unavailable(`the watch session is gone: ${error.message}`) : error;
      await this.#pauses.after(failure, signal).catch((last: unknown) => {
        if (!signal.aborted) throw last;
      });
    }
  }

  /** Open the stream; none if no topic is left. */
  async #open(): Promise<Frames | undefined> {
    if (this.options.transport === "websocket") {
      const subscribe = { ...this.#watch(this.#received), lenient: true };
      return SocketFrames.open(this.connection, subscribe, this.#heartbeatMs);
    }
    if (this.#streamUrl === undefined || (this.#opened && this.#lastId === undefined)) {
      await this.#makeSession(new Map(this.#received), true);
    }
    if (this.#streamUrl === undefined) return undefined;
    this.#opened = true;
    return EventFrames.open(this.connection, this.#streamUrl, this.#lastId, 2 * this.#heartbeatMs + 5000);
  }

  /** Take one frame: its items and the new position of its topic. */
  #take({ event, told }: Frame): void {
    const topic: string = told.topic ?? "";
    if (event === "error") return checkError(told);
    if (event === "subscribed") return this.#resolved(new Map(this.#received), told.topics);
    const position = this.#received.get(topic) ?? (this.options.prefix === undefined ? undefined : 0);
    if (position === undefined) return;
    if (event === "record") {
      const fresh = (told.records as Schemas["Record"][]).filter((each) => each.$seq > position);
      for (const each of fresh) this.#items.push(recordOf(topic, each));
      this.#received.set(topic, Math.max(position, told.to_seq)); // a session that is behind repeats frames
    } else if (event === "tombstone") {
      const gap = gapOf(topic, told);
      if (gap.reason !== "recreated") {
        if (gap.lastSeq <= position) return; // a session that is behind repeats it, as it does records
        gap.firstSeq = Math.max(gap.firstSeq, position + 1);
      }
      this.#items.push(gap);
      this.#received.set(topic, gap.seq);
    } else if (event === "topic-deleted") {
      this.#deleted(topic);
    }
  }
}
