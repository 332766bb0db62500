/**
 * Workers: they claim jobs of a queue, run a handler for each, and ack, or nack with a pause that grows.
 *
 *     the handler returns          ack, in the claim for the next job if that is due
 *     the handler throws           nack, held back for `backoff(deliveries)`
 *     the handler runs             its lease is extended each third of `leaseMs`
 *     `stop()`, or the signal      no more claims; handlers finish, after `graceMs` their signal is aborted and their jobs
 *                                  are nacked at once
 *
 * Delivery is at least once: a worker that loses its lease has its job run by another one, too.
 */

import { claim, named } from "./claiming.js";
import { type Connection, randomName, sleep } from "./connection.js";
import { BatchTooLarge, TopicsError } from "./errors.js";
import type { Job } from "./items.js";

/** Does a job. `signal` is aborted when the grace of a stop is over. */
export type Handler<T = unknown> = (job: Job<T>, signal: AbortSignal) => unknown;

export interface WorkOptions<T = unknown> {
  /** Handlers at a time, 1 if absent. */
  concurrency?: number;
  leaseMs?: number;
  /** How long a claim waits for jobs. */
  waitMs?: number;
  graceMs?: number;
  /** Name of the worker; a random one if absent. */
  node?: string;
  /** Milliseconds to hold a failed job back. */
  backoff?: (deliveries: number) => number;
  /**
   * Makes the reason that the service keeps with a failed job and shows with its dead letter, at most 512 bytes of it. By
   * default it is the error's name and message.
   */
  reason?: (error: unknown) => string | undefined;
  /** Called with each failed job and its error. Without it, they are logged as warnings. */
  onFailure?: (job: Job<T>, error: unknown) => void;
  /** Called with what the worker survives: claims, acks and extensions that failed. By default a warning is logged. */
  onWarning?: (message: string, error?: unknown) => void;
  /** Makes the data of a job what its handler works with. A job for which it throws fails, with its data as it came. */
  decode?: (data: unknown) => T;
  /** Stops the worker. */
  signal?: AbortSignal;
}

/** 1 s after the first delivery, twice that after the next, at most 5 min. */
export function doubling(deliveries: number): number {
  return Math.min(300_000, 1000 * 2 ** (deliveries - 1)) * (0.8 + Math.random() / 5);
}

/** An error as the reason of a nack. */
function told(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  return error.message === "" ? error.name : `${error.name}: ${error.message}`;
}

/** A reason as the service takes it: at most 512 bytes of UTF-8, its end cut. */
function shortened(reason: string): string {
  const bytes = new Uint8Array(512);
  return new TextDecoder().decode(bytes.subarray(0, new TextEncoder().encodeInto(reason, bytes).written));
}

interface Held<T> {
  job: Job<T>;
  abort: AbortController;
  /** Whether its ack or nack is on the way. */
  settling: boolean;
}

/** One run of a worker. `run` ends after `stop`, or with an error that no repetition mends. */
export class Worker<T = unknown> {
  readonly node: string;
  done = 0;
  failed = 0;
  readonly #held = new Map<string, Held<T>>();
  readonly #running = new Set<Promise<void>>();
  readonly #claims = new AbortController();
  readonly #beats = new AbortController();
  #grace: ReturnType<typeof setTimeout> | undefined;
  #wake: () => void = () => undefined;
  /** Whether claims wait for a free slot: the next job that ends is the reason for one. */
  #claimIsDue = false;
  /** Done jobs that the next claim acks, at most as many as a claim ever got: the service takes as many. */
  #finished: Job<T>[] = [];
  #most = 0;
  /** Jobs of one extension: as many as a service takes by default, or fewer if it has refused them. */
  #part = 1000;

  constructor(
    private readonly connection: Connection,
    readonly queue: string,
    private readonly handler: Handler<T>,
    private readonly options: WorkOptions<T>,
  ) {
    this.node = options.node ?? `worker-${randomName()}`;
  }

  /** Claim no more. Handlers have `graceMs` to finish. */
  stop(graceMs: number = this.options.graceMs ?? 30_000): void {
    this.#claims.abort(new Error("the worker stops"));
    this.#wake();
    clearTimeout(this.#grace);
    this.#grace = setTimeout(() => {
      for (const { abort } of this.#held.values()) abort.abort(new Error("the worker stops, and the grace is over"));
    }, graceMs);
  }

  /** Work until `stop`. */
  async run(): Promise<void> {
    const { signal } = this.options;
    const stop = () => this.stop();
    if (signal?.aborted) stop();
    signal?.addEventListener("abort", stop, { once: true });
    const beating = this.#beat();
    try {
      await this.#claim();
    } finally {
      if (!this.#claims.signal.aborted) stop();
      await Promise.all(this.#running);
      clearTimeout(this.#grace);
      signal?.removeEventListener("abort", stop);
      this.#beats.abort();
      await beating;
    }
  }

  /** Claim as many jobs as there are free slots, again and again. A claim with an ack waits for no jobs. */
  async #claim(): Promise<void> {
    const { concurrency = 1, leaseMs = 30_000, waitMs = 20_000 } = this.options;
    const { signal } = this.#claims;
    try {
      while (!signal.aborted) {
        const max = concurrency - this.#running.size;
        this.#claimIsDue = max <= 0;
        if (max <= 0) {
          await new Promise<void>((resolve) => (this.#wake = resolve));
          continue;
        }
        try {
          const ack = [...this.#finished];
          const options = { max, leaseMs, waitMs: ack.length > 0 ? 0 : waitMs, ack };
          const claimed = await claim<T>(this.connection, this.queue, this.node, options, { signal });
          this.#finished.splice(0, ack.length);
          this.done += ack.length;
          this.#most = Math.max(this.#most, claimed.length);
          for (const job of claimed) this.#begin(job);
        } catch (error) {
          if (signal.aborted) return;
          if (!(error instanceof TopicsError && error.transient)) throw error;
          this.#warn(`claims of ${this.queue} go on after an error`, error);
        }
      }
    } finally {
      this.#claimIsDue = false;
      await this.#ack(this.#finished); // also if a claim that was aborted has acked them
    }
  }

  #begin(job: Job<T>): void {
    const held = { job, abort: new AbortController(), settling: false };
    this.#held.set(job.leaseId, held);
    const unforeseen = (error: unknown) => console.warn(`topics: job ${job.seq} of ${this.queue} comes back when its lease ends`, error);
    const running = this.#handle(held).catch(unforeseen).finally(() => {
      this.#held.delete(job.leaseId);
      this.#running.delete(running);
      this.#wake();
    });
    this.#running.add(running);
  }

  async #handle(held: Held<T>): Promise<void> {
    const { job, abort } = held;
    const overdue = new Promise<"overdue">((resolve) =>
      abort.signal.addEventListener("abort", () => resolve("overdue"), { once: true }),
    );
    try {
      const handled = Promise.resolve().then(() => this.handler(this.#decoded(job), abort.signal));
      handled.catch(() => undefined); // after the grace is over, no one waits for it
      if ((await Promise.race([handled.then(() => "done" as const), overdue])) === "overdue") {
        this.#warn(`job ${job.seq} of ${this.queue} was given back unfinished`);
        return await this.#nack(job, 0);
      }
      held.settling = true;
    } catch (error) {
      held.settling = true;
      if (abort.signal.aborted) return this.#nack(job, 0);
      this.failed += 1;
      this.#tell(job, error);
      const { backoff = doubling, reason = told } = this.options;
      return await this.#nack(job, Math.round(backoff(job.deliveries)), reason(error));
    }
    if (this.#claimIsDue && this.#finished.length < this.#most) this.#finished.push(job);
    else await this.#ack([job]);
  }

  async #ack(jobs: Job<T>[]): Promise<void> {
    if (jobs.length === 0) return;
    try {
      await this.connection.call("ack", { path: { topic: this.queue }, body: { node: this.node, ...named(jobs) } });
      this.done += jobs.length;
    } catch (error) {
      for (const { seq } of jobs) this.#warn(`job ${seq} of ${this.queue} is done, but its ack failed`, error);
    }
  }

  #decoded(job: Job<T>): Job<T> {
    const { decode } = this.options;
    return decode === undefined ? job : { ...job, data: decode(job.data) };
  }

  #tell(job: Job<T>, failure: unknown): void {
    if (this.options.onFailure === undefined) {
      return this.#warn(`job ${job.seq} of ${this.queue} failed at delivery ${job.deliveries}`, failure);
    }
    try {
      this.options.onFailure(job, failure);
    } catch (error) {
      this.#warn("onFailure threw", error);
    }
  }

  async #nack(job: Job<T>, delay_ms: number, reason?: string): Promise<void> {
    const why = reason === undefined ? {} : { reason: shortened(reason) };
    try {
      await this.connection.call("nack", { path: { topic: this.queue }, body: { node: this.node, ...named([job]), delay_ms, ...why } });
    } catch (error) {
      this.#warn(`job ${job.seq} of ${this.queue} comes back when its lease ends`, error);
    }
  }

  /** Extend the leases of the jobs that run. It continues while handlers finish. */
  async #beat(): Promise<void> {
    const { leaseMs = 30_000 } = this.options;
    const { signal } = this.#beats;
    while (!signal.aborted) {
      await sleep(leaseMs / 3, signal).catch(() => undefined);
      let jobs = [...this.#held.values()].map((held) => held.job);
      while (jobs.length > 0 && !signal.aborted) jobs = jobs.slice(await this.#extend(jobs.slice(0, this.#part), leaseMs));
    }
  }

  /** Extend leases. Returns for how many jobs this was tried: none if the service takes fewer in one request. */
  async #extend(jobs: Job[], lease_ms: number): Promise<number> {
    const { signal } = this.#beats;
    try {
      const body = { node: this.node, ...named(jobs), lease_ms };
      const { skipped } = await this.connection.call("extend", { path: { topic: this.queue }, body }, { signal });
      const lost = [...this.#held.values()].filter(({ job, settling }) => !settling && skipped.includes(job.seq));
      if (lost.length > 0) this.#warn(`jobs ${lost.map(({ job }) => job.seq)} of ${this.queue} are held no more`);
    } catch (error) {
      if (error instanceof BatchTooLarge && jobs.length > 1) {
        this.#part = Math.floor(jobs.length / 2);
        return 0;
      }
      if (!signal.aborted) this.#warn(`leases of ${this.queue} are not extended`, error);
    }
    return jobs.length;
  }

  #warn(message: string, error?: unknown): void {
    if (this.options.onWarning) this.options.onWarning(message, error);
    else console.warn(`topics: ${message}`, ...(error === undefined ? [] : [error]));
  }
}
