/** Reading: the records of a topic, page by page, up to its head. */

import type { Connection } from "./connection.js";
import { GapError } from "./errors.js";
import { decoded, type Gap, gapOf, recordOf, type TopicRecord } from "./items.js";

/** A gap ends the iteration with `GapError`, or is given as an item. */
export type Gaps = "throw" | "yield";

export interface ReadOptions<T = unknown> {
  /** The records after this seq; 0 if absent. */
  fromSeq?: number;
  /** In place of `fromSeq`: the records after this named cursor. */
  cursor?: string;
  /** Records of a page. */
  limit?: number;
  /** How long to wait for records at the head, at most 30 s. */
  waitMs?: number;
  /** Leave out records of this node, or of these. */
  node?: string | string[];
  tags?: boolean;
  meta?: boolean;
  gaps?: Gaps;
  /** Makes the data of a record what the program works with, or throws: the `parse` of a zod schema, for example. */
  decode?: (data: unknown) => T;
  signal?: AbortSignal;
}

/** An iterator of records. At the head it ends; iterating again reads what came since. */
export class Reading<T = unknown> implements AsyncIterableIterator<TopicRecord<T> | Gap> {
  /** The position: all up to this seq was given. */
  seq: number;
  headSeq = 0;
  #next: { from_seq?: number; cursor?: string };
  #page: (TopicRecord | Gap)[] = [];
  #afterPage: number;
  #ended = false;

  constructor(
    private readonly connection: Connection,
    readonly topic: string,
    private readonly options: ReadOptions<T>,
  ) {
    this.seq = this.#afterPage = options.fromSeq ?? 0;
    this.#next = options.cursor === undefined ? { from_seq: this.seq } : { cursor: options.cursor };
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  async next(): Promise<IteratorResult<TopicRecord<T> | Gap, undefined>> {
    for (;;) {
      const item = this.#page.shift();
      if (item !== undefined) {
        this.seq = item.seq;
        if (item.kind === "gap" && this.options.gaps !== "yield") throw new GapError(item);
        return { done: false, value: item.kind === "record" ? decoded(item, this.options.decode) : item };
      }
      this.seq = this.#afterPage;
      if (this.#ended) {
        this.#ended = false;
        return { done: true, value: undefined };
      }
      await this.#turn();
    }
  }

  /** Read the next page. */
  async #turn(): Promise<void> {
    const { limit = 1000, waitMs: wait_ms, node, tags: include_tags = true, meta: include_meta, signal } = this.options;
    const options = { limit, include_tags, ...defined({ wait_ms, node, include_meta }) };
    const input = { path: { topic: this.topic }, body: { ...options, ...this.#next } };
    const told = await this.connection.call("diff", input, { signal });
    if (told.tombstone) this.#page.push(gapOf(this.topic, told.tombstone));
    for (const each of told.records) this.#page.push(recordOf(this.topic, each));
    this.#next = { from_seq: told.next_from_seq };
    this.#afterPage = told.next_from_seq;
    this.headSeq = told.head_seq;
    this.#ended = told.caught_up && !(wait_ms && this.#page.length > 0);
  }
}

/** The fields that have a value. */
export function defined<F extends object>(fields: F): { [N in keyof F]?: Exclude<F[N], undefined> } {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as never;
}
