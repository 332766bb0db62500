// All queues that have metrics of their own: how many jobs wait, are held, and went to the dead letters.

import {compact, plural, span, whole} from "../format.js";
import {byLabel, service} from "../service.js";
import {View, empty, html, link, named, nothing, search} from "../ui.js";
import {path, roundUp} from "../geometry.js";
import "../chart.js";
import "./new-topic.js";
import {waiting} from "./waiting.js";

const MOST_ROWS = 200;
const COLUMNS = [["topic", "queue"], ["ready", "ready"], ["flight", "in flight"], ["delayed", "delayed"], ["moving", "dead, on the way"], ["letters", "dead letters"], ["oldest", "oldest waits for"]];
const WIDE = new Set(["flight", "delayed", "moving", "oldest"]);

class QueuesView extends View {
  #text = "";
  #sort = ["ready", true];

  begin() {
    this.on(service, "change", () => this.draw());
  }

  get #queues() {
    const m = service.metrics;
    const of = name => byLabel(m["topics_topic_queue_" + name], "topic");
    const [flight, delayed, moving, letters, oldest] = ["in_flight", "delayed", "dead_lettering", "dead_letters", "oldest_waiting_ms"].map(of);
    const number = (map, topic) => map.get(topic) ?? 0;
    return m.topics_topic_queue_ready.map(({labels: {topic}, value}) => ({
      topic,
      ready: value,
      flight: number(flight, topic),
      delayed: number(delayed, topic),
      moving: number(moving, topic),
      letters: letters.get(topic) ?? -1, // it has no dead-letter topic, or one that cannot be seen
      oldest: number(oldest, topic),
    }));
  }

  template() {
    const m = service.metrics;
    if (!m) return html`<h1>Queues</h1>${waiting()}`;
    const [key, down] = this.#sort;
    const sign = down ? -1 : 1;
    const all = this.#queues.filter(each => each.topic.includes(this.#text));
    const order = (a, b) => sign * (a[key] < b[key] ? -1 : a[key] > b[key] ? 1 : 0) || (a.topic < b.topic ? -1 : 1);
    const shown = all.toSorted(order).slice(0, MOST_ROWS);
    const sum = read => service.series(each => [...each.depths.values()].reduce((total, depth) => total + read(depth), 0));
    return html`<div class="head"><h1>Queues <span class="soft count">${whole(m.topics_queue_topics)}</span></h1>
      <new-topic></new-topic></div>
      ${m.topics_queue_topics ? html`
        <figure class="card after-head"><figcaption>Jobs of all queues</figcaption>
          <line-chart .label=${"Jobs of all queues"} .format=${compact} .lines=${[
          {name: "ready", kind: "a", fill: true, points: sum(each => each.ready)}, {name: "in flight", kind: "b", points: sum(each => each.inFlight)}]}></line-chart></figure>
        <div class="bar">${search("Part of a name", "Search queues by a part of their names", text => { this.#text = text; this.draw(); })}</div>
        ${shown.length ? this.#table(shown) : empty("No queue matches", "The search looks for the text anywhere in the names.")}
        ${all.length > MOST_ROWS || m.topics_topic_metrics_truncated && m.topics_queue_topics > m.topics_topic_queue_ready.length ? html`<p class="foot soft">${plural(shown.length, "queue")} shown.
          Queues beyond TOPICS_METRICS_MAX_TOPICS have no depths here; find them among the topics.</p>` : nothing}`
        : empty("No queues yet", "A topic of the kind “queue” gives each of its records to one worker, and again until it is acked.")}`;
  }

  #table(queues) {
    const [key, down] = this.#sort;
    return html`<table class="list"><thead>
      <tr>${COLUMNS.map(([name, title], i) => html`<th class="${i ? "n" : ""}
        ${WIDE.has(name) ? "wide-only" : ""}" aria-sort=${name === key ? (down ? "descending" : "ascending") : nothing}>
        <button class="sort" @click=${() => { this.#sort = [name, name === key ? !down : i > 0]; this.draw(); }}>${title}</button></th>`)}<th class="wide-only">last minutes</th></tr></thead>
      <tbody>${queues.map(each => html`<tr><td class="name"><a data-row href=${link(each.topic)}>${named(each.topic)}</a></td>
        <td class="n">${whole(each.ready)}</td><td class="n wide-only">${whole(each.flight)}</td>
        <td class="n wide-only">${whole(each.delayed)}</td><td class="n wide-only">${whole(each.moving)}</td>
        <td class="n">${each.letters < 0 ? html`<span class="soft">–</span>` : whole(each.letters)}</td>
        <td class="n wide-only">${each.oldest ? span(each.oldest) : html`<span class="soft">–</span>`}</td>
          <td class="wide-only">${spark(each.topic)}</td></tr>`)}</tbody></table>`;
  }
}

function spark(topic) {
  const points = service.samples.map((each, i) => [i, each.depths.get(topic)?.ready ?? null]);
  const most = roundUp(Math.max(...points.map(([, value]) => value ?? 0), 0));
  const drawn = path(points, at => (at / Math.max(points.length - 1, 1)) * 120, value => 23 - (value / most) * 22);
  return html`<svg class="spark" viewBox="0 0 120 24" preserveAspectRatio="none" aria-hidden="true">
    <path class="line a" d=${drawn} /></svg>`;
}

customElements.define("queues-view", QueuesView);
