// All topics. By name, the service gives a page at a time. Another order, or a search within names, walks the list,
// a thousand a request, and is then sorted and paged here.

import {PAGE_ROWS, get, walk} from "../api.js";
import {byLabel, service} from "../service.js";
import {compact, plural, size, whole} from "../format.js";
import {View, empty, html, link, named, nothing, pill, problem} from "../ui.js";
import "./new-topic.js";

const EVERY_MS = 5000;
const WALK_MS = 30000;
const MOST = 20000;
const COLUMNS = [
  {name: "name", key: "topic"},
  {name: "records", key: "count", number: true},
  {name: "written", key: "rate", number: true, wide: true},
  {name: "size", key: "bytes", number: true},
  {name: "oldest", key: "earliest_seq", number: true, wide: true},
  {name: "head", key: "head_seq", number: true, wide: true},
];

class TopicsList extends View {
  #text = "";
  #sort = {key: "topic", down: false};
  #cursors = [""]; // of the pages up to the one shown
  #rows = null;
  #next = null;
  #all = null; // every topic, once it was walked
  #whole = true;
  #walked = 0; // when
  #page = 0;
  #counted = null;
  #before = new Map(); // topic → [head, time] of the refresh before
  #asked = 0;

  begin() {
    this.on(service, "change", () => this.draw());
    this.every(EVERY_MS, () => this.#load());
  }

  get #walks() {
    return this.#sort.key !== "topic" || this.#sort.down || this.#text.startsWith("*");
  }

  async #load(walkAgain = false) {
    const asked = (this.#asked += 1);
    if (this.#walks) {
      if (this.#all && !walkAgain && Date.now() - this.#walked < WALK_MS) return;
      const prefix = this.#text.startsWith("*") ? "" : this.#text;
      const {found, whole} = await walk("/v0/topics", "topics", {prefix}, MOST, so_far => {
        this.#counted = so_far;
        this.draw();
      });
      this.#counted = null;
      if (asked === this.#asked) [this.#all, this.#whole, this.#walked] = [this.#rated(found), whole, Date.now()];
      return;
    }
    const page = await get("/v0/topics", {prefix: this.#text, page_size: PAGE_ROWS, cursor: this.#cursors.at(-1)});
    if (asked !== this.#asked) return;
    this.#rows = this.#rated(page.topics);
    this.#next = page.next_cursor ?? null;
  }

  // With how many records a second were written since the refresh before.
  #rated(rows) {
    const now = Date.now();
    const before = this.#before;
    this.#before = new Map(rows.map(row => [row.topic, [row.head_seq, now]]));
    for (const row of rows) {
      const [head, at] = before.get(row.topic) ?? [row.head_seq, now];
      row.rate = now - at > 500 && now - at < 2 * WALK_MS ? Math.max(row.head_seq - head, 0) / ((now - at) / 1000) : null;
    }
    return rows;
  }

  #search(text) {
    this.#text = text.trim();
    this.#again();
  }

  #order(column) {
    const same = this.#sort.key === column.key;
    this.#sort = {key: column.key, down: same ? !this.#sort.down : Boolean(column.number)};
    this.#again();
  }

  #again() {
    [this.#cursors, this.#all, this.#page] = [[""], null, 0];
    this.attempt(() => this.#load(true));
  }

  #turn(by) {
    if (this.#walks) this.#page += by;
    else if (by < 0) this.#cursors.pop();
    else if (this.#next === null) return; // a second click, before the page is here
    else [this.#cursors, this.#next] = [[...this.#cursors, this.#next], null];
    this.attempt(() => this.#load());
    this.querySelector("table")?.scrollIntoView({block: "nearest"});
  }

  // The rows to show, and whether there are more before and after.
  get #shown() {
    if (!this.#walks) return {rows: this.#rows, back: this.#cursors.length > 1, on: this.#next !== null};
    if (!this.#all) return {rows: null};
    const part = this.#text.slice(1).toLowerCase();
    const found = this.#text.startsWith("*") ? this.#all.filter(row => row.topic.toLowerCase().includes(part)) : this.#all;
    const {key, down} = this.#sort;
    const sign = down ? -1 : 1;
    const sorted = found.toSorted((a, b) => sign * (key === "topic" ? (a.topic < b.topic ? -1 : 1) : (a[key] ?? -1) - (b[key] ?? -1)));
    const from = this.#page * PAGE_ROWS;
    return {rows: sorted.slice(from, from + PAGE_ROWS), back: from > 0, on: from + PAGE_ROWS < sorted.length, all: sorted.length};
  }

  // What the metrics know, for while the list cannot be had because a shard is away.
  get #remembered() {
    const records = byLabel(service.metrics?.topics_topic_records_live, "topic");
    const bytes = byLabel(service.metrics?.topics_topic_bytes_live, "topic");
    const earliest = byLabel(service.metrics?.topics_topic_earliest_seq, "topic");
    return (service.metrics?.topics_topic_head_seq ?? [])
      .filter(row => row.labels.topic.startsWith(this.#text))
      .slice(0, PAGE_ROWS)
      .map(({labels: {topic}, value}) => ({
        topic,
        head_seq: value,
        count: records.get(topic),
        bytes: bytes.get(topic),
        earliest_seq: earliest.get(topic),
      }));
  }

  template() {
    const {rows, back, on, all} = this.#shown;
    const fallback = !rows && this.error?.status === 503;
    const shown = rows ?? (fallback ? this.#remembered : null);
    return html`
      <div class="head"><h1>Topics <span class="soft count">${all === undefined ? whole(service.metrics?.topics_topics) : plural(all, "match", "matches")}</span></h1>
        <new-topic></new-topic></div>
      <div class="bar"><input type="search" data-search placeholder="Names that begin with…   or *part" aria-label="Search topics by the beginning of their names, or by a part with a star in front"
        .value=${this.#text} @input=${event => this.#typed(event.target)} spellcheck="false" autocapitalize="off"></div>
      ${problem(this.error)}
      ${fallback && shown.length ? html`<p class="soft">Until then: what was known last of the first ${plural(shown.length, "topic")}.</p>` : nothing}
      ${shown === null ? html`<p class="soft">${this.#counted ? `Read ${whole(this.#counted)} so far…` : "Asking the service…"}</p>` : this.#table(shown)}
      ${this.#whole ? nothing : html`<p class="soft">Sorted among the first ${whole(MOST)} topics; a prefix narrows them down.</p>`}
      ${back || on ? html`<nav class="pages" aria-label="Pages"><button ?disabled=${!back} @click=${() => this.#turn(-1)}>Previous</button>
        <span class="soft">page ${this.#walks ? this.#page + 1 : this.#cursors.length}</span>
        <button ?disabled=${!on} @click=${() => this.#turn(1)}>Next</button></nav>` : nothing}`;
  }

  #typed(field) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#search(field.value), 150);
  }

  #table(rows) {
    if (!rows.length) {
      return this.#text
        ? empty("No topic matches", "The search compares the beginning of names; *part finds it anywhere in them.")
        : empty("No topics yet", "A topic exists after its first write, or make one here.");
    }
    const queues = byLabel(service.metrics?.topics_topic_queue_ready, "topic");
    const arrow = column => (this.#sort.key === column.key ? (this.#sort.down ? "descending" : "ascending") : nothing);
    return html`<table class="list">
      <thead><tr>${COLUMNS.map(column => html`<th class="${column.number ? "n" : ""}
        ${column.wide ? "wide-only" : ""}" aria-sort=${arrow(column)}>
        <button class="sort" @click=${() => this.#order(column)}>${column.name}</button></th>`)}</tr></thead>
      <tbody>${rows.map(row => html`<tr>
        <td class="name"><a data-row href=${link(row.topic)}>${named(row.topic)}</a>
          ${queues.has(row.topic) ? pill("", "queue") : nothing}
          ${row.durable ? pill("", "fsync") : nothing}${row.quarantined ? pill("bad", "damaged") : nothing}</td>
        <td class="n">${whole(row.count)}</td>
        <td class="n wide-only">${row.rate ? html`${compact(row.rate)}/s` : html`<span class="soft">–</span>`}</td>
        <td class="n">${size(row.bytes)}</td>
        <td class="n wide-only soft">${whole(row.earliest_seq)}</td>
        <td class="n wide-only soft">${whole(row.head_seq)}</td></tr>`)}</tbody></table>`;
  }
}

customElements.define("topics-list", TopicsList);
