/** Claims, and how requests name the jobs that a worker holds. */

import { type CallOptions, type Connection } from "./connection.js";
import { type Claimed, type Job, jobOf } from "./items.js";
import { defined } from "./reading.js";

/** Jobs that are leased. */
export type Jobs = Pick<Job, "seq" | "leaseId">[];

export interface ClaimOptions {
  max?: number;
  leaseMs?: number;
  /** How long to wait for a job when there is none. */
  waitMs?: number;
  /** Jobs to complete first. */
  ack?: Jobs;
  /** Jobs to give back first, after the ack. */
  nack?: Jobs;
  /** How long to hold the jobs `nack` back. */
  delayMs?: number;
  /** Why the jobs `nack` failed. */
  reason?: string;
}

export function named(jobs: Jobs): { seqs: number[]; lease_ids: string[] } {
  return { seqs: jobs.map((job) => job.seq), lease_ids: jobs.map((job) => job.leaseId) };
}

export async function claim<T>(
  connection: Connection,
  queue: string,
  node: string,
  options: ClaimOptions,
  how?: CallOptions,
): Promise<Claimed<T>> {
  const { max, leaseMs: lease_ms, waitMs: wait_ms, delayMs: delay_ms = 0, reason } = options;
  const path = { topic: queue };
  const ack = options.ack?.length ? named(options.ack) : undefined;
  const nack = options.nack?.length ? { ...named(options.nack), delay_ms, ...defined({ reason }) } : undefined;
  const body = { node, ...defined({ max, lease_ms, wait_ms, ack, nack }) };
  const told = await connection.call("claim", { path, body }, how);
  const claimed: Claimed<T> = told.claimed.map((each) => jobOf<T>(queue, each));
  // A service of an earlier release passes over both.
  if (ack) claimed.ack = told.ack ?? (await connection.call("ack", { path, body: { node, ...ack } }, how));
  if (nack) claimed.nack = told.nack ?? (await connection.call("nack", { path, body: { node, ...nack } }, how));
  return claimed;
}
