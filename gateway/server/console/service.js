// What the console knows of the service as a whole: it asks for the metrics every two seconds, keeps ten minutes of
// them in memory, and tells its listeners. What was before comes from the history that the service keeps.

import {Unreachable, access, get, metrics} from "./api.js";
import {quantile} from "./geometry.js";

const EVERY_MS = 2000;
const SAMPLES = 300;
const HISTORY_MS = 60000; // how often it is asked for
const GAP_MS = 30000; // the page was hidden, or the service away
const MOST_QUEUES = 100;
const LATENCY_SPAN = 5; // samples that a quantile is taken over

export const byLabel = (rows, label) => new Map((rows ?? []).map(row => [row.labels[label], row.value]));
const READS = new Set(["diff", "topic_state", "list_topics", "watch_stream", "watch", "get_cursor", "list_cursors", "list_all_cursors", "peek", "get_router", "list_routers"]);
const OWN = new Set(["metrics", "metrics_history", "ready", "health", "openapi", "asyncapi", "none", "preflight"]);

class Service extends EventTarget {
  metrics = null;
  ready = null;
  error = null;
  samples = [];
  history = null;
  #asked = 0; // when, for the history

  start() {
    access.addEventListener("change", () => {
      this.#asked = 0;
      this.#ask();
    });
    this.#loop();
  }

  // "asking", "ready", "not ready", "key needed", "unreachable"
  get state() {
    if (this.error?.status === 0) return "unreachable";
    if (this.error?.status === 401) return "key needed";
    if (this.error?.status === 403 || this.ready === null) return this.ready ? "ready" : "asking";
    return this.ready.ok ? "ready" : "not ready";
  }

  get shards() {
    const phases = new Map();
    for (const row of this.metrics?.topics_shard_phase ?? []) if (row.value) phases.set(row.labels.shard, row.labels.phase);
    const restarts = byLabel(this.metrics?.topics_shard_restarts_total, "shard");
    const hangs = byLabel(this.metrics?.topics_shard_hangs_total, "shard");
    const told = new Map((this.ready?.shards ?? []).map(each => [String(each.shard), each]));
    return (this.metrics?.topics_shard_up ?? []).map(({labels: {shard}, value}) => ({
      shard,
      up: value === 1,
      phase: phases.get(shard) ?? "unknown",
      progress: told.get(shard)?.progress,
      restarts: restarts.get(shard) ?? 0,
      hangs: hangs.get(shard) ?? 0,
    }));
  }

  // [time, value] of `read` of each sample; with `counter`, its change a second. null where it is not known.
  series(read, counter = false) {
    const {samples} = this;
    if (!counter) return samples.map(each => [each.at, read(each)]);
    return samples.slice(1).map((each, i) => {
      const change = read(each) - read(samples[i]);
      const seconds = (each.at - samples[i].at) / 1000;
      return [each.at, change >= 0 && seconds < 30 ? change / seconds : null];
    });
  }

  // [time, value] of the last hour: a column of the history, then what the page has seen itself, as `series` gives it.
  hour(column, read, counter = false, scale = 1) {
    const {history, samples} = this;
    const own = this.series(read, counter);
    if (!history) return own;
    const until = samples[0]?.at ?? Infinity;
    const points = [];
    history.at.forEach((at, i) => {
      if (at >= until) return;
      if (i && at - history.at[i - 1] > GAP_MS) points.push([at - 1, null]);
      const value = history[column][i];
      points.push([at, value === null ? null : value * scale]);
    });
    return [...points, ...own];
  }

  rate(read) {
    const known = this.series(read, true).slice(-3).filter(([, value]) => value !== null);
    return known.length ? known.reduce((sum, [, value]) => sum + value, 0) / known.length : undefined;
  }

  // A quantile of how long syncs of the log took, in ms, at each sample.
  syncs(share) {
    return this.samples.slice(1).map((each, i) => [each.at, quantile(each.syncs, this.samples[Math.max(i + 1 - LATENCY_SPAN, 0)].syncs, share)]);
  }

  async #loop() {
    for (;;) {
      if (!document.hidden) await this.#ask();
      await new Promise(resolve => setTimeout(resolve, EVERY_MS));
    }
  }

  async #ask() {
    try {
      this.ready = {ok: true, ...(await get("/v0/ready"))};
    } catch (error) {
      this.ready = error.status ? {ok: false, message: error.message, ...error.detail} : null;
      this.error = error;
    }
    try {
      const begun = performance.now();
      this.metrics = await metrics();
      this.#keep(performance.now() - begun, await probe());
      if (Date.now() - this.#asked >= HISTORY_MS) await this.#look();
      this.error = null;
    } catch (error) {
      // Numbers of another release, or of something else. The page goes on asking.
      this.error = error.status === undefined ? new Unreachable("The answers are not those that this page knows. Load it again.") : error;
      if (this.error !== error) console.error(error);
    }
    this.dispatchEvent(new Event("change"));
  }

  async #look() {
    const history = await get("/v0/metrics/history");
    this.#asked = Date.now();
    this.history = {...history, since: this.#asked - history.since_ms, at: history.ago_ms.map(ago => this.#asked - ago)};
  }

  #keep(scrapeMs, probed) {
    const m = this.metrics;
    if (Date.now() - (this.samples.at(-1)?.at ?? 0) > GAP_MS) [this.samples, this.#asked] = [[], 0];
    const kinds = {reads: 0, writes: 0, errors: 0};
    for (const {labels: {operation, status}, value} of m.topics_http_requests_total) {
      if (OWN.has(operation)) continue;
      kinds[READS.has(operation) ? "reads" : "writes"] += value;
      if (status >= "400") kinds.errors += value;
    }
    const flight = byLabel(m.topics_topic_queue_in_flight, "topic");
    const depths = m.topics_topic_queue_ready.slice(0, MOST_QUEUES)
      .map(({labels: {topic}, value}) => [topic, {ready: value, inFlight: flight.get(topic) ?? 0}]);
    this.samples.push({
      at: Date.now(),
      scrapeMs,
      ...probed,
      ...kinds,
      records: m.topics_records_written_total,
      bytes: m.topics_wal_bytes_written_total,
      frames: m.topics_wal_frames_total,
      copies: m.topics_router_copies_total,
      waiting: m.topics_wal_queue_depth,
      syncs: m.topics_wal_fsync_latency_us,
      depths: new Map(depths),
    });
    if (this.samples.length > SAMPLES) this.samples.shift();
  }
}

// How long a small request takes: here, and of that inside the service.
async function probe() {
  const begun = performance.now();
  try {
    const {performance: own} = await get("/v0/topics", {page_size: 1});
    return {requestMs: performance.now() - begun, serverMs: own?.server_total_ms};
  } catch (error) {
    if (error.status === undefined) throw error;
    return {requestMs: null, serverMs: null};
  }
}

export const service = new Service();
