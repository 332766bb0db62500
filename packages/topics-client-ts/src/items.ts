/** What is sent and what comes back: records, gaps, jobs. */

import { DecodeError } from "./errors.js";
import type { components } from "./schema.js";

export type Schemas = components["schemas"];
/** Meta of a record: small headers. */
export type Meta = Record<string, unknown>;

/** A record to publish. `data` is any JSON value; `delayMs` holds a job of a queue back. */
export interface NewRecord {
  data: unknown;
  tag?: string;
  node?: string;
  meta?: Meta;
  delayMs?: number;
}

/** A record of a topic. `ts` is in milliseconds since 1970. */
export interface TopicRecord<T = unknown> {
  kind: "record";
  topic: string;
  seq: number;
  ts: number;
  data: T;
  tag?: string;
  node?: string;
  meta?: Meta;
}

/**
 * Records `firstSeq` to `lastSeq`, both included, are lost. `seq` is the position after the gap. If the topic was deleted
 * and made again (reason `recreated`), its seqs begin again.
 */
export interface Gap {
  kind: "gap";
  topic: string;
  seq: number;
  firstSeq: number;
  lastSeq: number;
  reason: string;
  earliestSeq: number;
}

/** The topic was deleted; a tail continues with its other topics. */
export interface TopicDeleted {
  kind: "deleted";
  topic: string;
  seq: number;
}

export interface Published {
  topic: string;
  firstSeq: number;
  lastSeq: number;
  count: number;
  created: boolean;
  /** Whether the service had the records of a batch already. */
  deduped: boolean;
  idempotencyKey: string;
}

/** A leased job. */
export interface Job<T = unknown> {
  queue: string;
  seq: number;
  ts: number;
  data: T;
  tag?: string;
  meta?: Meta;
  leaseId: string;
  /** When the lease ends, in milliseconds since 1970. */
  deadline: number;
  /** Deliveries so far, this one included. */
  deliveries: number;
}

/** The jobs of a claim. `ack` and `nack` tell of the jobs that it finished, if there were some. */
export type Claimed<T = unknown> = Job<T>[] & {
  ack?: Pick<Schemas["Acked"], "acked" | "skipped">;
  nack?: Pick<Schemas["Nacked"], "nacked" | "skipped">;
};

function shown(told: { $tag?: string; meta?: Meta }): { tag?: string; meta?: Meta } {
  return { ...(told.$tag !== undefined && { tag: told.$tag }), ...(told.meta !== undefined && { meta: told.meta }) };
}

export function recordOf<T>(topic: string, told: Schemas["Record"]): TopicRecord<T> {
  const node = told.$node === undefined ? {} : { node: told.$node };
  return { kind: "record", topic, seq: told.$seq, ts: told.$ts, data: told.data as T, ...node, ...shown(told) };
}

/** The record with its data as `decode` makes it. Throws `DecodeError`. */
export function decoded<T>(record: TopicRecord, decode: ((data: unknown) => T) | undefined): TopicRecord<T> {
  if (decode === undefined) return record as TopicRecord<T>;
  try {
    return { ...record, data: decode(record.data) };
  } catch (error) {
    throw new DecodeError(record, error);
  }
}

export function gapOf(topic: string, told: Pick<Schemas["Tombstone"], "gap_from" | "gap_to" | "reason" | "earliest_seq">): Gap {
  const seq = told.reason === "recreated" ? told.earliest_seq - 1 : told.gap_to;
  const { gap_from: firstSeq, gap_to: lastSeq, reason, earliest_seq: earliestSeq } = told;
  return { kind: "gap", topic, seq, firstSeq, lastSeq, reason, earliestSeq };
}

export function jobOf<T>(queue: string, told: Schemas["ClaimedJob"]): Job<T> {
  const { $seq: seq, $ts: ts, lease_id: leaseId, deadline, deliveries } = told;
  return { queue, seq, ts, data: told.data as T, leaseId, deadline, deliveries, ...shown(told) };
}
