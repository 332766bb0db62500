// Records as they are written: a watch, read as an event stream. The last 1000 are kept. While it is paused, they are
// kept too, and those that no longer fit are counted.

import {access, post, stream} from "../api.js";
import {withRecords} from "../json.js";
import {compact, plural, whole} from "../format.js";
import {View, empty, html, nothing, pill, problem, search} from "../ui.js";
import "./record-rows.js";

const MOST = 1000;
const MOST_CHARACTERS = 16e6;
const DRAW_MS = 200;
const AGAIN_MS = 2000;

class TopicLive extends View {
  #rows = []; // the newest first
  #waiting = []; // came while paused
  #skipped = 0;
  #seen = 0;
  #paused = false;
  #tag = "";
  #source = null;
  #wid = null;
  #last = null; // the last seq that came
  #state = "connecting";
  #soon = null;
  #run = 0; // of #open: only the latest continues
  #next = null; // its timer
  topic = "";

  begin() {
    this.on(access, "change", () => {
      this.#source?.close();
      this.#wid = null; // a session belongs to the key that made it
      this.#open();
    });
    this.#open();
  }

  end() {
    this.#source?.close();
    clearTimeout(this.#soon);
    clearTimeout(this.#next);
    this.#soon = null;
  }

  async #open() {
    if (this.left) return;
    clearTimeout(this.#next);
    const run = (this.#run += 1);
    const late = () => this.left || run !== this.#run;
    this.#say("connecting");
    await this.attempt(async () => {
      if (!this.#wid) {
        const start = this.#last === null ? {tail: true} : {from_seq: this.#last};
        const asked = {topics: {[this.topic]: start}, include_tags: true, limit: 200, max_batch_bytes: 128 << 10};
        const {stream_url} = await post("/v0/watch", asked);
        if (late()) return;
        this.#wid = stream_url;
      }
      const source = await stream(this.#wid);
      if (late()) source.close();
      else this.#follow(source);
    });
    if (this.error && !late()) this.#again(this.error.status);
  }

  #follow(source) {
    this.#source = source;
    source.onopen = () => this.#say("live");
    source.addEventListener("record", event => this.#take(withRecords(event.data).records));
    source.addEventListener("caught-up", () => this.#say("live"));
    source.addEventListener("tombstone", event => {
      const gap = JSON.parse(event.data);
      this.#take([{gap: `Gap: seqs ${whole(gap.gap_from)} to ${whole(gap.gap_to)} are lost (${gap.reason})`, lost: true}]);
    });
    source.addEventListener("topic-deleted", () => {
      this.#say("deleted");
      source.close();
    });
    // The browser would open the same address again, but its ticket is used up: so it is closed, and opened from here.
    source.onerror = () => {
      source.close();
      this.#again();
    };
  }

  #again(status = 0) {
    if (this.left || this.#state === "deleted") return;
    if (status === 404 || status === 400) this.#wid = null; // the session is gone: another one continues after the last seq
    this.#tries += 1;
    if (this.#tries > 2) this.#wid = null;
    this.#say("reconnecting");
    this.#next = setTimeout(() => this.#open(), AGAIN_MS);
  }

  #tries = 0;

  #say(state) {
    if (state === "live") this.#tries = 0;
    this.#state = state;
    this.draw();
  }

  #take(rows) {
    const fresh = rows.filter(row => row.gap || this.#last === null || row.$seq > this.#last);
    if (fresh.length && fresh.at(-1).$seq) this.#last = fresh.at(-1).$seq;
    this.#seen += fresh.length;
    const wanted = fresh.filter(row => row.gap || !this.#tag || this.#matches(row.$tag ?? ""));
    if (this.#paused) {
      this.#waiting.unshift(...wanted.reverse());
      this.#skipped += this.#waiting.splice(fitting(this.#waiting)).length;
    } else {
      this.#keep([...wanted.reverse(), ...this.#rows]);
    }
    this.#soon ??= setTimeout(() => {
      this.#soon = null;
      this.draw();
    }, DRAW_MS);
  }

  #keep(rows) {
    this.#rows = rows.slice(0, fitting(rows));
    this.#full ||= this.#rows.length < rows.length;
  }

  #full = false;

  #matches(tag) {
    return this.#tag.endsWith("*") ? tag.startsWith(this.#tag.slice(0, -1)) : tag === this.#tag;
  }

  #pause() {
    this.#paused = !this.#paused;
    if (!this.#paused) {
      const skipped = this.#skipped ? [{gap: `${plural(this.#skipped, "record")} came while it was paused and did not fit`}] : [];
      this.#keep([...this.#waiting, ...skipped, ...this.#rows]);
      [this.#waiting, this.#skipped] = [[], 0];
    }
    this.draw();
  }

  template() {
    const kind = {live: "good", deleted: "bad"}[this.#state] ?? "warn";
    const held = this.#waiting.length + this.#skipped;
    return html`
      <div class="bar">
        ${search("Tag, or tag:*", "Show records with this tag; a star at its end matches tags that begin so", tag => { this.#tag = tag; })}
        <button class=${this.#paused ? "primary" : ""} id="pause" @click=${() => this.#pause()}>${this.#paused ? `Go on${held ? ` (${compact(held)})` : ""}` : "Pause"}</button>
        <button @click=${() => { this.#rows = []; this.draw(); }}>Clear</button>
        <span class="grow"></span>
        <span class="soft">${compact(this.#seen)} so far</span>
        <span role="status" id="live-state">${pill(kind, this.#paused && this.#state === "live" ? "paused" : this.#state)}</span>
      </div>
      ${problem(this.error)}
      ${this.#rows.length ? html`<record-rows .rows=${this.#rows} .what=${"Newest records of " + this.topic}></record-rows>`
        : this.#state === "deleted" ? empty("The topic was deleted", "A topic of this name that is made later has records of its own.")
          : empty("Nothing yet", "Records show here the moment they are written.")}
      ${this.#full ? html`<p class="foot soft">The newest ${whole(this.#rows.length)} are kept.</p>` : nothing}`;
  }
}

// How many of these rows are kept: the page holds them in memory, and a record may have a megabyte.
function fitting(rows) {
  let left = MOST_CHARACTERS;
  const at = rows.findIndex(({data = "", meta = ""}, n) => n === MOST || (n && (left -= data.length + meta.length) < 0));
  return at < 0 ? rows.length : at;
}

customElements.define("topic-live", TopicLive);
