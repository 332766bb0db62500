// The service as a whole: what needs attention, rates and latencies of the last hour, shards and processes, log and disk.

import {compact, millis, plural, size, span, whole} from "../format.js";
import {service} from "../service.js";
import {View, fact, html, nothing, pill} from "../ui.js";
import {waiting} from "./waiting.js";
import "../chart.js";

const rate = n => (n === undefined ? "–" : compact(n) + "/s");
const topics = n => plural(n, "topic is", "topics are");
const FOLLOWERS = /^topics_(replica|replication|follower|ship|standby)/;

const SPANS = [["10 minutes", 600000], ["1 hour", 3600000]];

class Overview extends View {
  #span = SPANS[1][1];

  begin() {
    this.on(service, "change", () => this.draw());
  }

  template() {
    const m = service.metrics;
    if (!m) return html`<h1>Overview</h1>${waiting()}`;
    const free = m.topics_disk_free_bytes;
    return html`
      <h1>Overview</h1>
      ${this.#attention(m)}
      <section class="tiles" aria-label="Totals">
        ${this.#tile("Records written", rate(service.rate(each => each.records)), `${compact(m.topics_records_live)} live`)}
        ${this.#tile("Requests", rate(service.rate(each => each.reads + each.writes)), `${whole(m.topics_http_requests_in_flight)} in flight`)}
        ${this.#tile("Topics", whole(m.topics_topics), `${whole(m.topics_queue_topics)} of them queues`)}
        ${this.#tile("Live data", size(m.topics_bytes_live), Number.isFinite(free) ? `${size(free)} free` : "")}
        ${this.#tile("Up for", span(m.topics_uptime_ms), m.topics_ready ? "every shard serves" : "not every shard serves")}
      </section>
      ${this.#spans()}
      <section class="charts" aria-label="The last hour">
        ${this.#chart("Requests", rate, [
          {name: "reads", kind: "a", fill: true, points: service.hour("reads", each => each.reads, true)},
          {name: "writes", kind: "b", points: service.hour("writes", each => each.writes, true)},
          {name: "errors", kind: "c", points: service.hour("errors", each => each.errors, true)},
        ])}
        ${this.#chart("Records written", rate, [
          {name: "records", kind: "a", fill: true, points: service.hour("records", each => each.records, true)},
          {name: "copied by routers", kind: "b", points: service.hour("copies", each => each.copies, true)},
        ])}
        ${this.#chart("Latency of a small request", millis, [
          {name: "inside the service", kind: "a", fill: true, points: service.hour("answer_us", each => each.serverMs ?? null, false, 0.001)},
          {name: "with this browser", kind: "b", points: service.series(each => each.requestMs)},
        ])}
        ${this.#chart("Sync of the log", millis, [
          {name: "median", kind: "a", fill: true, points: this.#syncs("sync_median_us", 0.5)},
          {name: "99 %", kind: "c", points: this.#syncs("sync_p99_us", 0.99)},
        ])}
        ${this.#chart("Written to the log", n => (n === undefined ? "–" : size(n) + "/s"), [
          {name: "bytes", kind: "a", fill: true, points: service.hour("bytes", each => each.bytes, true)},
        ], true)}
        ${this.#chart("Writes that wait for the log", compact, [
          {name: "waiting", kind: "a", fill: true, points: service.hour("waiting", each => each.waiting)},
        ])}
      </section>
      ${this.#machines(m)}
      ${this.#shards()}
      <div class="columns">${this.#log(m)}${this.#connections(m)}${this.#classes(m)}${this.#replication(m)}</div>`;
  }

  #attention(m) {
    const full = service.ready?.detail?.shards ?? [];
    const found = [
      ...service.shards.filter(each => !each.up).map(each => ["bad", 1, `Shard ${each.shard} does not serve: ${each.phase}.`]),
      ["bad", m.topics_quarantined, `${topics(m.topics_quarantined)} set apart because files are damaged: topics verify.`],
      ["bad", m.topics_wal_read_only, `${plural(m.topics_wal_read_only, "shard")} can write nothing because the log failed.`],
      ["bad", full.length, `The disk is nearly full: shard ${full.join(", ")} refuses writes. Delete records, set caps, or make room.`],
      ["warn", m.topics_routers_waiting, `${plural(m.topics_routers_waiting, "router")} waiting for room, in a full topic or under a cap.`],
      ["warn", m.topics_letters_waiting, `${plural(m.topics_letters_waiting, "dead letter")} on the way, or waiting for room.`],
    ].filter(([, number]) => number);
    if (!found.length) return nothing;
    return html`<ul class="attention">${found.map(([kind, , text]) => html`<li class=${kind}>${text}</li>`)}</ul>`;
  }

  #tile(label, value, note) {
    return html`<div class="tile"><span class="label">${label}</span><span class="value">${value}</span>
      <span class="note">${note}</span></div>`;
  }

  #syncs(column, share) {
    const own = service.syncs(share);
    const before = service.hour(column, () => null, false, 0.001);
    return [...before.slice(0, Math.max(before.length - service.samples.length, 0)), ...own];
  }

  #spans() {
    const kept = service.history && Date.now() - service.history.since;
    return html`<div class="bar"><div class="segments" role="group" aria-label="Plots of the last">${SPANS.map(([name, ms]) => html`<button
        aria-pressed=${String(ms === this.#span)} @click=${() => { this.#span = ms; this.draw(); }}>${name}</button>`)}</div>
      ${kept && kept < SPANS[1][1] ? html`<span class="soft" id="history">The service has kept its history for ${span(kept)}, since the gateway started.</span>` : nothing}</div>`;
  }

  #chart(title, format, lines, bytes = false) {
    return html`<figure class="card"><figcaption>${title}</figcaption>
      <line-chart .label=${title} .format=${format} .bytes=${bytes} .span=${this.#span} .lines=${lines}></line-chart></figure>`;
  }

  #shards() {
    return html`<section class="card"><h2>Shards and processes</h2>
      <div class="scroll" tabindex="0" role="region" aria-label="Shards and processes"><table>
        <thead><tr><th>process</th><th>state</th><th class="n">started again</th><th class="n">killed, no answer</th></tr></thead>
        <tbody>
          <tr><td>${service.metrics.topics_gateways === undefined ? "gateway" : `gateways: ${whole(service.metrics.topics_gateways)}`}</td>
            <td>${pill("good", "serves")}</td>
            <td class="n soft">${service.metrics.topics_gateway_restarts_total ? `${whole(service.metrics.topics_gateway_restarts_total)}, ` : nothing}up for ${span(service.metrics.topics_uptime_ms)}</td>
            <td class="n">–</td></tr>
          ${service.shards.map(each => html`<tr data-shard=${each.shard}><td>shard ${each.shard}</td>
            <td>${pill(each.up ? "good" : "bad", each.up ? "serves" : each.phase)}
              ${each.up || each.progress === undefined ? nothing : html`<span class="soft">${Math.floor(each.progress * 100)} %</span>`}</td>
            <td class="n">${whole(each.restarts)}</td><td class="n">${whole(each.hangs)}</td></tr>`)}
        </tbody></table></div></section>`;
  }

  #machines(m) {
    if (!m.topics_member?.length) return nothing;
    const held = new Map();
    for (const {labels: {shard, machine}} of m.topics_shard_holder) held.set(machine, [...(held.get(machine) ?? []), shard]);
    const members = new Map(m.topics_member.map(({labels}) => [labels.machine, labels.node]));
    const shown = [...new Set([...members.keys(), ...held.keys()])];
    return html`<section class="card" id="machines"><h2>Machines</h2>
      <div class="scroll" tabindex="0" role="region" aria-label="Machines"><table>
        <thead><tr><th>machine</th><th class="n">node</th><th>holds shards</th></tr></thead>
        <tbody>${shown.map(machine => html`<tr data-machine=${machine}><td>${machine}</td>
          <td class="n">${members.get(machine) ?? "–"}</td><td>${held.get(machine)?.join(", ") ?? "none"}</td></tr>`)}
        </tbody></table></div></section>`;
  }

  #log(m) {
    const synced = m.topics_wal_fsync_latency_us;
    return html`<section class="card"><h2>Log and disk</h2><div class="facts">
      ${fact("written", size(m.topics_wal_bytes_written_total))}
      ${fact("syncs", compact(m.topics_wal_fsyncs_total))}
      ${fact("mean sync", synced.count ? millis(synced.sum / synced.count / 1000) : "–")}
      ${fact("frames in a sync", m.topics_wal_fsyncs_total ? compact(m.topics_wal_frames_total / m.topics_wal_fsyncs_total) : "–")}
      ${fact("most that ever waited", whole(m.topics_wal_queue_depth_peak))}
      ${fact("refused, disk full", whole(m.topics_disk_refused_total))}</div></section>`;
  }

  #connections(m) {
    return html`<section class="card"><h2>Readers</h2><div class="facts">
      ${fact("open streams", whole(m.topics_sse_connections))}
      ${fact("watch sessions", whole(m.topics_watch_sessions))}
      ${fact("named cursors", whole(m.topics_cursors))}
      ${fact("routers", whole(m.topics_routers))}
      ${fact("jobs held by workers", whole(m.topics_queue_leases_in_flight))}
      ${fact("copied by routers", compact(m.topics_router_copies_total))}</div></section>`;
  }

  #classes(m) {
    return html`<section class="card"><h2>Topics by durability</h2><div class="facts">
      ${m.topics_topics_by_class.map(row => fact(row.labels.class, whole(row.value)))}</div></section>`;
  }

  #replication(m) {
    const found = Object.entries(m).filter(([name]) => FOLLOWERS.test(name));
    if (!found.length) return nothing;
    const rows = found.flatMap(([name, value]) =>
      Array.isArray(value)
        ? value.map(row => [`${name.slice(7)} ${Object.values(row.labels).join(" ")}`, row.value])
        : [[name.slice(7), value]]);
    return html`<section class="card"><h2>Replication</h2><div class="facts">
      ${rows.map(([name, value]) => fact(name.replaceAll("_", " "), typeof value === "number" ? compact(value) : whole(value.count)))}</div></section>`;
  }
}

customElements.define("service-overview", Overview);
