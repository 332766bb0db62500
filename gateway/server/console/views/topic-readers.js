// What reads a topic and what it reads from: named cursors with their lag, and routers in and out.

import {get, topicPath} from "../api.js";
import {ago, compact, whole} from "../format.js";
import {View, empty, html, link, nothing, problem} from "../ui.js";
import "./router-forms.js";

const EVERY_MS = 3000;

class TopicCursors extends View {
  #cursors = null;
  #more = false;
  topic = "";

  begin() {
    this.every(EVERY_MS, async () => {
      const page = await get(topicPath(this.topic) + "/cursors", {page_size: 1000});
      [this.#cursors, this.#more] = [page.cursors, page.next_cursor !== undefined];
    });
  }

  template() {
    const cursors = this.#cursors;
    const most = Math.max(...(cursors ?? []).map(each => each.lag), 1);
    return html`${problem(this.error)}
      ${cursors === null ? nothing : !cursors.length ? empty("No named cursors", "A reader that keeps its position in the service has one: PUT /v0/topics/" + this.topic + "/cursors/NAME.")
        : html`<table class="list"><thead><tr><th>cursor</th><th class="n">position</th><th class="n">behind by</th><th class="wide-only">
          <span class="hidden">share</span></th><th class="n">moved</th></tr></thead>
        <tbody>${cursors.map(each => html`<tr><td class="name">${each.cursor}</td><td class="n">${whole(each.seq)}</td>
          <td class="n">${whole(each.lag)}</td>
          <td class="wide-only"><meter min="0" max=${most} value=${each.lag} aria-label="${each.cursor}: ${each.lag} behind"></meter></td>
            <td class="n soft">${ago(each.updated_ts)}</td></tr>`)}</tbody></table>`}
      ${this.#more ? html`<p class="soft">The first thousand.</p>` : nothing}`;
  }
}

class TopicRouters extends View {
  #into = null;
  #from = [];
  topic = "";

  begin() {
    this.on(this, "routers", () => this.attempt(() => this.#load()));
    this.every(EVERY_MS, () => this.#load());
  }

  async #load() {
    const [into, from] = await Promise.all(["dest", "source"].map(end => get("/v0/routers", {[end]: this.topic, page_size: 1000})));
    [this.#into, this.#from] = [into.routers, from.routers];
  }

  template() {
    if (this.#into === null) return problem(this.error);
    return html`<div class="bar"><new-router .source=${this.topic}></new-router></div>${problem(this.error)}
      ${this.#into.length || this.#from.length ? nothing : empty("No routers", "A router copies what is appended to one topic to another.")}
      ${this.#list("Into this topic", "from", this.#into, "source")} ${this.#list("Out of this topic", "to", this.#from, "dest")}`;
  }

  #list(title, label, routers, end) {
    if (!routers.length) return nothing;
    return html`<section class="card"><h2>${title}</h2><table><thead><tr><th>${label}</th><th class="wide-only">router</th>
      <th class="wide-only">guarantee</th><th class="n">copied</th><th><span class="hidden">delete</span></th></tr></thead>
      <tbody>${routers.map(each => html`<tr><td class="name"><a data-row href=${link(each[end])}>${each[end]}</a></td>
        <td class="wide-only soft">${each.router}</td>
        <td class="wide-only soft">${each.guarantee.replaceAll("_", " ")}</td>
          <td class="n">${compact(each.forwarded_total)}</td>
          <td class="n"><delete-router .router=${each}></delete-router></td></tr>`)}</tbody></table></section>`;
  }
}

customElements.define("topic-cursors", TopicCursors);
customElements.define("topic-routers", TopicRouters);
