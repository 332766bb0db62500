// One topic: what it is, and a tab for each thing to do with it.

import {get, topicPath} from "../api.js";
import {ago, compact, size, whole} from "../format.js";
import {View, fact, html, link, named, nothing, pill, problem} from "../ui.js";
import "./topic-jobs.js";
import "./topic-live.js";
import "./topic-publish.js";
import "./topic-readers.js";
import "./topic-records.js";
import "./topic-settings.js";

const EVERY_MS = 2500;

class TopicView extends View {
  #topic = "";
  #state = null;
  #rate = null;
  tab = "";

  set topic(topic) {
    if (topic === this.#topic) return;
    [this.#topic, this.#state, this.#rate] = [topic, null, null];
    if (!this.isConnected) return;
    this.clear(); // tabs hold what they know of the topic before
    this.attempt(() => this.#load());
  }

  set at(tab) {
    this.tab = tab;
    this.draw();
  }

  begin() {
    this.every(EVERY_MS, () => this.#load());
  }

  async #load() {
    const topic = this.#topic;
    const at = performance.now();
    const state = await get(topicPath(topic), {touch: false});
    if (topic !== this.#topic) return;
    const before = this.#state;
    if (before && state.epoch === before.epoch) this.#rate = Math.max((state.head_seq - before.head_seq) / ((at - this.#at) / 1000), 0);
    [this.#state, this.#at] = [state, at];
  }

  #at = 0;

  get #tabs() {
    const jobs = this.#state?.type === "queue" ? [["jobs", "Jobs"]] : [];
    return [...jobs, ["records", "Records"], ["live", "Live"], ["publish", "Publish"], ["cursors", "Cursors"], ["routers", "Routers"], ["settings", "Settings"]];
  }

  template() {
    const state = this.#state;
    const tab = this.tab || this.#tabs[0][0];
    return html`
      <p class="crumb"><a href="#/topics">Topics</a></p>
      <h1>${named(this.#topic)} ${state ? this.#pills(state) : nothing}</h1>
      ${state?.quarantined ? html`<div class="notice bad" role="alert"><b>Set apart: ${state.quarantined.reason}</b>
        <span class="soft">topics verify names the files; see docs/operations.md.</span></div>` : nothing}
      ${problem(this.error)}
      ${state || this.error?.status !== 404 ? this.#content(tab, state) : nothing}`;
  }

  #content(tab, state) {
    return html`
      <div class="strip">
        ${fact("records", whole(state?.count))} ${fact("size", size(state?.bytes))} ${fact("oldest seq", whole(state?.earliest_seq))} ${fact("head seq", whole(state?.head_seq))}
        ${fact("written", this.#rate === null ? "–" : compact(Math.round(this.#rate * 10) / 10) + "/s")} ${fact("last write", state ? ago(state.last_write_ts) : "–")}</div>
      <nav class="tabs" aria-label="Of this topic">${this.#tabs.map(([name, title]) => html`<a href=${link(this.#topic, name)} aria-current=${name === tab ? "page" : nothing}>${title}</a>`)}</nav>
      ${this.#shown(tab, state)}`;
  }

  #pills({type, config, quarantined}) {
    return html`<span class="pills">${pill("", type)}${pill("", config.durability)}${quarantined ? pill("bad", "damaged") : nothing}</span>`;
  }

  #shown(tab, state) {
    const topic = this.#topic;
    switch (tab) {
      case "jobs": return html`<topic-jobs .topic=${topic} .state=${state}></topic-jobs>`;
      case "live": return html`<topic-live .topic=${topic}></topic-live>`;
      case "publish": return html`<topic-publish .topic=${topic} .queue=${state?.type === "queue"}></topic-publish>`;
      case "cursors": return html`<topic-cursors .topic=${topic}></topic-cursors>`;
      case "routers": return html`<topic-routers .topic=${topic}></topic-routers>`;
      case "settings": return html`<topic-settings .topic=${topic} .state=${state}></topic-settings>`;
      default: return html`<topic-records .topic=${topic} .state=${state}></topic-records>`;
    }
  }
}

customElements.define("topic-view", TopicView);
