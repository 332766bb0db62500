// The records of a topic, the newest first. A diff reads forwards only, so what is older is asked for by ranges of seqs
// below those that are here. Filtering by tag, and by text in data and meta, is done here too, as many ranges an action as
// LOOKS says.

import {get, records, topicPath} from "../api.js";
import {plural, whole} from "../format.js";
import {holds} from "../json.js";
import {View, empty, html, nothing, problem} from "../ui.js";
import "./record-rows.js";

const RANGE = 200; // seqs
const FILTER_RANGE = 1000;
const BYTES = 128 << 10;
const LOOKS = 10;
const ENOUGH = 100;
const MOST = 5000;

class TopicRecords extends View {
  #rows = [];
  #low = null; // everything from this seq on was looked at
  #high = null; // where the newest row was looked for
  #state = null;
  #gone = null; // the tombstone at the beginning of the topic
  #tag = "";
  #text = "";
  #busy = false;
  #run = 0;
  topic = "";

  set state(state) {
    const first = this.#state === null;
    this.#state = state;
    if (first && state && this.isConnected) this.#newest();
    this.draw();
  }

  begin() {
    if (this.#state) this.#newest();
  }

  // Show the newest records there are at this moment; the state may be a few seconds old.
  #newest() {
    return this.attempt(async () => {
      this.#state = await get(topicPath(this.topic), {touch: false});
      this.#jump(this.#state.head_seq);
    });
  }

  // Show the records up to `seq`.
  #jump(seq) {
    this.#run += 1;
    this.#busy = false;
    [this.#rows, this.#low, this.#high] = [[], seq + 1, seq];
    this.querySelector("record-rows")?.top();
    this.#older();
  }

  async #older() {
    const first = this.#state?.earliest_seq ?? 1;
    if (this.#busy || this.#low === null || this.#low <= first || this.#rows.length >= MOST) return;
    this.#busy = true;
    const run = this.#run;
    await this.attempt(() => this.#look(run, first));
    if (run === this.#run) this.#busy = false;
    this.draw();
  }

  async #look(run, first) {
    let span = this.#filtered ? FILTER_RANGE : RANGE;
    let found = 0;
    for (let look = 0; look < LOOKS && found < ENOUGH && this.#low > first; look += 1) {
      const from = Math.max(this.#low - 1 - span, first - 1, 0);
      const page = await this.#range(from, this.#low - 1);
      if (run !== this.#run || this.left) return;
      if (page.cut && this.#low - 1 - from > RANGE / 4) {
        span = Math.ceil((this.#low - 1 - from) / 4); // too much for one answer: look nearer
        continue;
      }
      const kept = page.records.filter(each => this.#matches(each));
      this.#rows = [...this.#rows, ...kept.reverse()];
      found += kept.length;
      this.#low = from + 1;
      if (!page.records.length) span *= 8;
      this.draw();
    }
    if (this.#low <= first && first > 1 && this.#gone === null) {
      this.#gone = (await records(this.topic, {from_seq: 0, limit: 1})).tombstone ?? false;
    }
  }

  // The records with from < seq <= to. `cut`: there were more than an answer may hold, and the range is wide.
  async #range(from, to) {
    const found = [];
    const wide = to - from > RANGE / 4;
    for (let at = from; at < to; ) {
      const page = await records(this.topic, {from_seq: at, limit: Math.min(to - at, 1000), include_tags: true, max_batch_bytes: BYTES});
      found.push(...page.records.filter(each => each.$seq <= to));
      if (wide && page.next_from_seq < to && !page.caught_up) return {records: [], cut: true};
      if (page.caught_up || page.next_from_seq <= at) break;
      at = page.next_from_seq;
    }
    return {records: found, cut: false};
  }

  get #filtered() {
    return this.#tag !== "" || this.#text !== "";
  }

  #matches(record) {
    if (this.#text && !holds(record.data, this.#text) && !(record.meta && holds(record.meta, this.#text))) return false;
    if (!this.#tag) return true;
    const tag = record.$tag ?? "";
    return this.#tag.endsWith("*") ? tag.startsWith(this.#tag.slice(0, -1)) : tag === this.#tag;
  }

  // The rows, with a line where seqs are missing.
  get #shown() {
    if (this.#filtered) return this.#rows;
    const shown = [];
    let next = this.#high;
    for (const row of this.#rows) {
      if (row.$seq < next) shown.push({gap: `${seqs(row.$seq + 1, next)} not there: deleted, acked or expired`});
      shown.push(row);
      next = row.$seq - 1;
    }
    if (this.#low !== null && this.#low <= (this.#state?.earliest_seq ?? 1) && next >= 1) {
      const gone = this.#gone;
      shown.push(gone ? {gap: `Gap: ${seqs(gone.gap_from, gone.gap_to)} lost (${gone.reason}${gone.cause ? ", " + gone.cause : ""})`, lost: true}
        : {gap: `${seqs(1, next)} deleted`});
    }
    return shown;
  }

  template() {
    const state = this.#state;
    if (!state) return problem(this.error);
    const newer = state.head_seq - (this.#high ?? state.head_seq);
    const go = event => {
      event.preventDefault();
      this.#jump(Math.min(Math.max(Number(event.target.elements.seq.value) || state.head_seq, 1), state.head_seq));
    };
    return html`
      <form class="bar" @submit=${go}>
        <input type="search" data-search name="tag" placeholder="Tag, or tag:*"
          aria-label="Show records with this tag; a star at its end matches tags that begin so"
          .value=${this.#tag} @change=${event => { this.#tag = event.target.value.trim(); this.#newest(); }} spellcheck="false">
        <input type="search" name="text" placeholder="Text in data or meta"
          aria-label="Show records whose data or meta has this text, in any case"
          .value=${this.#text} @change=${event => { this.#text = event.target.value; this.#newest(); }} spellcheck="false">
        <label class="inline">seq <input name="seq" type="number" class="short" min=${Math.max(state.earliest_seq, 1)}
          max=${state.head_seq} placeholder=${state.head_seq}></label>
        <button>Go</button>
        <button type="button" @click=${() => this.#jump(Math.min(state.earliest_seq + ENOUGH - 1, state.head_seq))}>Oldest</button>
        <button type="button" @click=${() => this.#newest()}>Newest${newer > 0 ? html` <span class="soft">+${whole(newer)}</span>` : nothing}</button>
      </form>
      ${problem(this.error)}
      ${this.#rows.length || this.#busy
        ? html`<record-rows .rows=${this.#shown} .busy=${this.#busy} .what=${"Records of " + this.topic}
            @end=${() => !this.#filtered && this.#older()}></record-rows>`
        : this.#none()}
      <p class="foot soft" role="status">${this.#foot(state)}
        ${this.#filtered && this.#low > state.earliest_seq && !this.#busy ? html`<button @click=${() => this.#older()}>Look further back</button>` : nothing}</p>`;
  }

  #none() {
    if (this.error) return nothing;
    return this.#filtered ? empty("No such record so far", "The search goes back from the newest record, some thousand records at a time.")
      : empty("No records", "Publish one, or write with POST /v0/topics/" + this.topic + ".");
  }

  #foot(state) {
    if (this.#busy) return "Reading…";
    if (this.#filtered && this.#low !== null) {
      const searched = `${plural(this.#rows.length, "record")} found in seqs ${whole(Math.min(this.#low, this.#high))} to ${whole(this.#high)}`;
      return this.#low > state.earliest_seq ? `${searched}; what is older was not searched.` : `${searched}, back to the beginning of the topic.`;
    }
    const shown = plural(this.#rows.length, "record");
    if (this.#rows.length >= MOST) return `${shown} shown, the most at a time. Go on with a seq below ${this.#low}.`;
    if (this.#low !== null && this.#low > state.earliest_seq) return `${shown}; looked back to seq ${this.#low}.`;
    return `${shown}, back to the beginning of the topic.`;
  }
}

const seqs = (from, to) => (from === to ? `seq ${from} is` : `seqs ${whole(from)} to ${whole(to)} are`);

customElements.define("topic-records", TopicRecords);
