// All consumers that keep their positions in the service: the named cursors of all topics, those furthest behind first.
// The list is walked a thousand a request, and sorted, searched and paged here.

import {PAGE_ROWS, walk} from "../api.js";
import {ago, plural, whole} from "../format.js";
import {service} from "../service.js";
import {View, empty, html, link, named, nothing, problem, search} from "../ui.js";

const MOST = 20000;
const EVERY_MS = 5000;
const LONG_MS = 30000; // between two walks of a long list
const LONG = 2000;
const COLUMNS = [
  {name: "cursor", key: "cursor"},
  {name: "topic", key: "topic"},
  {name: "position", key: "seq", number: true, wide: true},
  {name: "behind by", key: "lag", number: true},
  {name: "moved", key: "updated_ts", number: true, wide: true},
];

class ConsumersView extends View {
  #cursors = null;
  #whole = true;
  #walked = 0; // when
  #counted = 0;
  #text = "";
  #sort = {key: "lag", down: true};
  #page = 0;

  begin() {
    this.every(EVERY_MS, async () => {
      if (this.#cursors?.length > LONG && !this.error && Date.now() - this.#walked < LONG_MS) return;
      const {found, whole} = await walk("/v0/cursors", "cursors", {}, MOST, so_far => {
        this.#counted = so_far;
        if (!this.#cursors) this.draw();
      });
      [this.#cursors, this.#whole, this.#walked] = [found, whole, Date.now()];
    });
  }

  // What the metrics know, for while the list cannot be had because a shard is away.
  get #remembered() {
    const rows = service.metrics?.topics_cursor_lag ?? [];
    return rows.map(({labels, value}) => ({...labels, lag: value}));
  }

  #order({key, number}) {
    this.#sort = {key, down: key === this.#sort.key ? !this.#sort.down : Boolean(number)};
    this.#page = 0;
    this.draw();
  }

  #turn(by) {
    this.#page += by;
    this.draw();
    this.querySelector("table")?.scrollIntoView({block: "nearest"});
  }

  template() {
    const fallback = !this.#cursors && this.error?.status === 503;
    const all = this.#cursors ?? (fallback ? this.#remembered : null);
    return html`<div class="head"><h1>Consumers <span class="soft count">${all ? whole(all.length) : ""}${this.#whole ? "" : " and more"}</span></h1></div>
      ${problem(this.error)}
      ${fallback && all.length ? html`<p class="soft">Until then: what was known last of the first ${plural(all.length, "consumer")}.</p>` : nothing}
      ${all === null ? (this.error ? nothing : html`<p class="soft">${this.#counted ? `Read ${whole(this.#counted)} so far…` : "Asking the service…"}</p>`)
        : all.length || this.error ? this.#list(all)
          : empty("No consumers yet", "A reader that keeps its position in the service has a named cursor: PUT /v0/topics/TOPIC/cursors/NAME.")}`;
  }

  #list(all) {
    const found = this.#text ? all.filter(each => each.cursor.includes(this.#text) || each.topic.includes(this.#text)) : all;
    const {key, down} = this.#sort;
    const sign = down ? -1 : 1;
    const order = (a, b) => sign * (a[key] < b[key] ? -1 : a[key] > b[key] ? 1 : 0) || (a.topic < b.topic ? -1 : a.topic > b.topic ? 1 : a.cursor < b.cursor ? -1 : 1);
    const from = Math.min(this.#page * PAGE_ROWS, Math.max(found.length - 1, 0));
    const shown = found.toSorted(order).slice(from, from + PAGE_ROWS);
    const behind = found.filter(each => each.lag > 0).length;
    return html`<div class="bar">${search("Part of a cursor's or topic's name", "Search consumers by a part of their names, or of their topics'", text => { this.#text = text; this.#page = 0; this.draw(); })}
        <span class="soft" role="status">${plural(behind, "consumer is", "consumers are")} behind</span></div>
      ${shown.length ? this.#table(shown, found) : empty("No consumer matches", "The search looks for the text anywhere in the names.")}
      ${this.#whole ? nothing : html`<p class="foot soft">Sorted among the first ${whole(MOST)} by their topics' names.</p>`}
      ${found.length > PAGE_ROWS ? html`<nav class="pages" aria-label="Pages"><button ?disabled=${from === 0} @click=${() => this.#turn(-1)}>Previous</button>
        <span class="soft">page ${this.#page + 1} of ${Math.ceil(found.length / PAGE_ROWS)}</span>
        <button ?disabled=${from + PAGE_ROWS >= found.length} @click=${() => this.#turn(1)}>Next</button></nav>` : nothing}`;
  }

  #table(rows, found) {
    const most = found.reduce((sum, each) => Math.max(sum, each.lag), 1);
    const arrow = column => (this.#sort.key === column.key ? (this.#sort.down ? "descending" : "ascending") : nothing);
    return html`<table class="list"><thead><tr>${COLUMNS.map(column => html`<th class="${column.number ? "n" : ""}
      ${column.wide ? "wide-only" : ""}" aria-sort=${arrow(column)}><button class="sort" @click=${() => this.#order(column)}>${column.name}</button></th>`)}
        <th class="wide-only"><span class="hidden">share of the most</span></th></tr></thead>
      <tbody>${rows.map(each => html`<tr><td class="name"><a data-row href=${link(each.topic, "cursors")}>${each.cursor}</a></td>
        <td class="name"><a href=${link(each.topic)}>${named(each.topic)}</a></td>
        <td class="n wide-only soft">${whole(each.seq)}</td><td class="n">${whole(each.lag)}</td>
        <td class="n wide-only soft">${each.updated_ts ? ago(each.updated_ts) : "–"}</td>
        <td class="wide-only"><meter min="0" max=${most} value=${each.lag} aria-label="${each.cursor} of ${each.topic}: ${each.lag} behind"></meter></td></tr>`)}</tbody></table>`;
  }
}

customElements.define("consumers-view", ConsumersView);
