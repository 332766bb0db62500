// Records as rows, and the chosen one in full: <record-rows .rows=${[record or {gap}]}>. Only the rows in sight are in the
// document, however many there are. "end" is sent when the last one comes near.

import {compact, plural, stamp, time} from "../format.js";
import {picked} from "../json.js";
import {View, html, link, nothing, pill} from "../ui.js";
import "./json-tree.js";

const ROW_PX = 34;
const SPARE = 12; // rows beyond both edges
const PREVIEW = 200;
const MOST_REASON = 4000;
const LETTER = {from: "$dead_letter_from", deliveries: "$dead_letter_deliveries", seq: "$dead_letter_src_seq", reason: "$dead_letter_reason"};
const narrow = matchMedia("(max-width: 52rem)");

export class RecordRows extends View {
  #rows = [];
  #chosen = null;
  #from = 0;
  #fit = 40;
  #tags = true;
  busy = false;
  what = "Records";
  states = false; // whether rows have a state, as jobs do

  set rows(rows) {
    this.#rows = rows;
    this.draw();
  }

  begin() {
    this.on(window, "resize", () => this.draw());
  }

  drawn() {
    const area = this.querySelector(".rows");
    const before = this.querySelector(".before");
    const after = this.querySelector(".after");
    if (!area || !before) return;
    this.#fit = Math.ceil(area.clientHeight / ROW_PX) + 2 * SPARE;
    before.style.height = `${this.#from * ROW_PX}px`;
    after.style.height = `${Math.max(this.#rows.length - this.#from - this.#fit, 0) * ROW_PX}px`;
    this.#near(area);
  }

  #scrolled(area) {
    const from = Math.max(Math.floor(area.scrollTop / ROW_PX) - SPARE, 0);
    const step = Math.floor(from / 4) * 4; // drawn again every fourth row
    if (step !== this.#from) {
      this.#from = step;
      this.draw();
    }
    this.#near(area);
  }

  #near(area) {
    if (area.scrollTop + area.clientHeight > this.#rows.length * ROW_PX - 10 * ROW_PX) this.dispatchEvent(new Event("end"));
  }

  top() {
    this.#from = 0;
    const area = this.querySelector(".rows");
    if (area) area.scrollTop = 0;
    this.draw();
  }

  #choose(record) {
    this.#chosen = record;
    this.draw();
  }

  template() {
    const from = Math.min(this.#from, Math.max(this.#rows.length - 1, 0));
    const seen = this.#rows.slice(from, from + this.#fit);
    const chosen = this.#chosen;
    this.#tags = !chosen && !narrow.matches; // where there is room
    return html`<div class="browser ${chosen ? "split" : ""}">
      <div class="rows" tabindex="0" role="region" aria-label=${this.what} aria-busy=${String(this.busy)} @scroll=${event => this.#scrolled(event.target)}>
        <table aria-rowcount=${this.#rows.length}>
          <thead><tr><th class="n">seq</th><th>time</th>${this.states ? html`<th class="state-of">state</th>` : nothing}
            ${this.#tags ? html`<th class="tag">tag</th>` : nothing}<th class="data">data</th></tr></thead>
          <tbody><tr class="before" aria-hidden="true"><td colspan=${this.#columns}></td></tr>
          ${seen.map(row => (row.gap ? this.#gap(row) : this.#row(row, row.$seq === chosen?.$seq)))}
          <tr class="after" aria-hidden="true"><td colspan=${this.#columns}></td></tr></tbody>
        </table></div>
      ${chosen ? this.#detail(chosen) : nothing}</div>`;
  }

  get #columns() {
    return 3 + this.states + this.#tags;
  }

  #gap({gap, lost}) {
    return html`<tr class="gap ${lost ? "lost" : ""}"><td colspan=${this.#columns}>${gap}</td></tr>`;
  }

  #row(row, chosen) {
    return html`<tr class=${chosen ? "chosen" : ""} @click=${() => this.#choose(row)}>
      <td class="n"><button class="seq" data-row aria-label="Record ${row.$seq}" aria-pressed=${String(chosen)}
        @focus=${() => this.#chosen && this.#choose(row)}>${row.$seq}</button></td>
      <td class="time" title=${stamp(row.$ts)}>${time(row.$ts)}</td>
      ${this.states ? html`<td>${this.#state(row)}</td>` : nothing}
      ${this.#tags ? html`<td class="tag">${row.$tag ?? ""}</td>` : nothing}
      <td class="data">${this.#why(row)}${row.data.slice(0, PREVIEW)}</td></tr>`;
  }

  // Of a dead letter, in front of its data.
  #why(row) {
    const {reason} = letter(row);
    return reason === undefined ? nothing : html`<span class="reason">${reason.slice(0, PREVIEW)}</span> `;
  }

  #state({state, deliveries}) {
    return html`${pill(STATES[state], state.replace("_", " "))} ${deliveries > 1 ? html`<span class="soft">×${deliveries}</span>` : nothing}`;
  }

  #detail(record) {
    const {from, deliveries, seq, reason} = letter(record);
    const facts = [["time", stamp(record.$ts)], ["tag", record.$tag], ["node", record.$node ?? record.node], ["state", record.state?.replace("_", " ")],
      ["deliveries", record.deliveries], ["lease ends", record.deadline && stamp(record.deadline)], ["due", record.due && stamp(record.due)],
      ["goes to", record.dead_letter], ["waits for", record.waits_for],
      ["dead letter of", from && html`<a href=${link(from)}>${from}</a>${seq === undefined ? nothing : `, seq ${seq}`}`],
      ["delivered", deliveries && plural(deliveries, "time")], ["failed because", (record.reason ?? reason)?.slice(0, MOST_REASON)]].filter(([, value]) => value !== undefined);
    return html`<aside class="detail" aria-label="Record ${record.$seq}">
      <div class="head"><h2>Record ${record.$seq}</h2><div>
        <button class="quiet" @click=${event => this.#copy(event.target, record.data)}>Copy data</button>
        <button class="quiet" aria-label="Close the record" @click=${() => this.#choose(null)}>✕</button></div></div>
      <dl>${facts.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>
      <h3>data <span class="soft">${compact(record.data.length)} characters</span></h3><json-tree .text=${record.data}></json-tree>
      ${record.meta ? html`<h3>meta</h3><json-tree .text=${record.meta}></json-tree>` : nothing}</aside>`;
  }

  async #copy(button, text) {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed by the browser";
    }
    setTimeout(() => (button.textContent = "Copy data"), 1500);
  }
}

// What the service noted of a dead letter, where it is what the service notes: others may write such a meta, too.
function letter({meta}) {
  if (!meta?.includes("$dead_letter_")) return {};
  const found = picked(meta, Object.values(LETTER));
  const value = (name, kind) => (typeof found[name] === kind ? found[name] : undefined);
  return {from: value(LETTER.from, "string"), deliveries: value(LETTER.deliveries, "number"), seq: value(LETTER.seq, "number"), reason: value(LETTER.reason, "string")};
}

const STATES = {ready: "good", in_flight: "", delayed: "warn", dead_lettering: "bad"};

customElements.define("record-rows", RecordRows);
