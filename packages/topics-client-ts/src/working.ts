/**
 * Workers: they claim jobs of a queue, run a handler for each, and ack, or nack with a pause that grows.
 *
 *     the handler returns          ack
 *     the handler throws           nack, held back for `backoff(deliveries)`
 *     the handler runs             its lease is extended each third of `leaseMs`
 *     `stop()`, or the signal      no more claims; handlers finish, after `graceMs` their signal is aborted and their jobs
 *                                  are nacked at once
 *
 * Delivery is at least once: a worker that loses its lease has its job run by another one, too.
 */

import { type Connection, randomName, sleep } from "./connection.js";
import { TopicsError } from "./errors.js";
import { type Job, jobOf } from "./items.js";

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

  /** Claim as many jobs as there are free slots, again and again. */
  async #claim(): Promise<void> {
    const { concurrency = 1, leaseMs: lease_ms = 30_000, waitMs: wait_ms = 20_000 } = this.options;
    const { signal } = this.#claims;
    while (!signal.aborted) {
      const max = concurrency - this.#running.size;
      if (max <= 0) {
        await new Promise<void>((resolve) => (this.#wake = resolve));
        continue;
      }
      try {
        const body = { node: this.node, max, lease_ms, wait_ms };
        const told = await this.connection.call("claim", { path: { topic: this.queue }, body }, { signal });
        for (const each of told.claimed) this.#begin(jobOf<T>(this.queue, each));
      } catch (error) {
        if (signal.aborted) return;
        if (!(error instanceof TopicsError && error.transient)) throw error;
        this.#warn(`claims of ${this.queue} go on after an error`, error);
      }
    }
  }

  #begin(job: Job<T>): void {
    const held = { job, abort: new AbortController(), settling: false };
    this.#held.set(job.leaseId, held);
    const running = this.#handle(held).finally(() => {
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
      return this.#nack(job, Math.round((this.options.backoff ?? doubling)(job.deliveries)));
    }
    try {
      await this.connection.call("ack", { path: { topic: this.queue }, body: this.#leases([job]) });
      this.done += 1;
    } catch (error) {
      this.#warn(`job ${job.seq} of ${this.queue} is done, but its ack failed`, error);
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

  async #nack(job: Job<T>, delay_ms: number): Promise<void> {
    try {
      await this.connection.call("nack", { path: { topic: this.queue }, body: { ...this.#leases([job]), delay_ms } });
    } catch (error) {
      this.#warn(`job ${job.seq} of ${this.queue} comes back when its lease ends`, error);
    }
  }

  #leases(jobs: Job[]): { node: string; seqs: number[]; lease_ids: string[] } {
    return { node: this.node, seqs: jobs.map((job) => job.seq), lease_ids: jobs.map((job) => job.leaseId) };
  }

  /** Extend the leases of the jobs that run. It continues while handlers finish. */
  async #beat(): Promise<void> {
    const lease_ms = this.options.leaseMs ?? 30_000;
    const { signal } = this.#beats;
    while (!signal.aborted) {
      try {
        await sleep(lease_ms / 3, signal);
        const jobs = [...this.#held.values()].map((held) => held.job);
        if (jobs.length === 0) continue;
        const body = { ...this.#leases(jobs), lease_ms };
        const { skipped } = await this.connection.call("extend", { path: { topic: this.queue }, body }, { signal });
        const lost = [...this.#held.values()].filter(({ job, settling }) => !settling && skipped.includes(job.seq));
        if (lost.length > 0) this.#warn(`jobs ${lost.map(({ job }) => job.seq)} of ${this.queue} are held no more`);
      } catch (error) {
        if (!signal.aborted) this.#warn(`leases of ${this.queue} are not extended`, error);
      }
    }
  }

  #warn(message: string, error?: unknown): void {
    if (this.options.onWarning) this.options.onWarning(message, error);
    else console.warn(`topics: ${message}`, ...(error === undefined ? [] : [error]));
  }
}
