// The jobs of a queue: depths over time, jobs by state without leasing any, and dead letters, which may go back.

import {jobs, post, topicPath} from "../api.js";
import {compact, plural, span, whole} from "../format.js";
import {holds} from "../json.js";
import {byLabel, service} from "../service.js";
import {View, done, empty, fact, html, link, nothing, problem, search} from "../ui.js";
import "../chart.js";
import "./record-rows.js";

const EVERY_MS = 3000;
const PAGE = 200;
const STATES = ["all", "ready", "in_flight", "delayed", "dead_lettering"];

class TopicJobs extends View {
  #state = null;
  #jobs = [];
  #counts = null;
  #more = false;
  #wanted = "all";
  #text = "";
  #first = 0;
  #done = "";
  topic = "";

  set state(state) {
    this.#state = state;
    this.draw();
  }

  begin() {
    this.on(service, "change", () => this.draw());
    this.every(EVERY_MS, () => this.#peek());
  }

  async #peek() {
    const page = await jobs(this.topic, {first_seq: this.#first, max: PAGE});
    [this.#jobs, this.#counts, this.#more, this.next] = [page.jobs, page, page.more, page.next_seq];
  }

  #show(first) {
    this.#first = first;
    this.attempt(() => this.#peek());
  }

  async #redrive(from) {
    await this.attempt(async () => {
      const {redriven, more} = await post(topicPath(from) + "/redrive", {queue: this.topic, max: 1000});
      this.#done = `${plural(redriven, "dead letter")} went back to this queue${more ? "; there are more" : ""}.`;
      await this.#peek();
    });
  }

  #matches({data, meta}) {
    return !this.#text || holds(data, this.#text) || (meta !== undefined && holds(meta, this.#text));
  }

  template() {
    const counts = this.#counts;
    const queue = this.#state?.queue, dead = this.#state?.config.dead_letter;
    const oldest = byLabel(service.metrics?.topics_topic_queue_oldest_waiting_ms, "topic").get(this.topic);
    const letters = byLabel(service.metrics?.topics_topic_records_live, "topic").get(dead);
    const shown = this.#jobs.filter(job => (this.#wanted === "all" || job.state === this.#wanted) && this.#matches(job));
    const depth = read => service.series(each => each.depths.has(this.topic) ? read(each.depths.get(this.topic)) : null);
    return html`${problem(this.error)} ${done(this.#done)}
      <div class="card"><div class="facts">
        ${fact("ready", whole(counts?.ready))} ${fact("in flight", whole(counts?.in_flight))} ${fact("delayed", whole(counts?.delayed))} ${fact("dead, on the way", whole(counts?.dead_lettering))}
        ${fact("oldest waits for", oldest ? span(oldest) : "–")} ${fact("dead letters so far", whole(queue?.dead_lettered))}</div></div>${queue?.waits_for ? html`<p class="notice warn">Dead letters cannot go to ${dead}: ${queue.waits_for.replaceAll("_", " ")}. They wait here.</p>` : nothing}
      <figure class="card"><figcaption>Jobs</figcaption><line-chart .label=${"Jobs of " + this.topic} .format=${compact} .lines=${[
        {name: "ready", kind: "a", fill: true, points: depth(each => each.ready)}, {name: "in flight", kind: "b", points: depth(each => each.inFlight)}]}></line-chart></figure>
      ${dead ? html`<div class="card line">
        <span>Dead letters go to <a href=${link(dead)}>${dead}</a>${letters === undefined ? nothing : html`, which has ${plural(letters, "record")}`}.</span>
        <button id="redrive" ?disabled=${letters === 0} @click=${() => this.#redrive(dead)}>Send them back here</button></div>`
        : html`<p class="soft">No dead-letter topic: a job is delivered until a worker acks it.</p>`}
      <div class="bar"><div class="segments" role="group" aria-label="Jobs by state">${STATES.map(state => html`<button aria-pressed=${String(state === this.#wanted)}
        @click=${() => { this.#wanted = state; this.draw(); }}>${state.replace("_", " ")}</button>`)}</div>${search("Text in data or meta", "Show jobs here whose data or meta has this text, in any case", text => { this.#text = text; this.draw(); })}<span class="grow"></span>
        ${this.#first ? html`<button @click=${() => this.#show(0)}>First jobs</button>` : nothing}
        ${this.#more ? html`<button @click=${() => this.#show(this.next)}>Next jobs</button>` : nothing}</div>
      ${shown.length ? html`<record-rows .rows=${shown} .states=${true} .what=${"Jobs of " + this.topic}></record-rows>`
        : counts ? empty(this.#text ? "No such job here" : this.#wanted === "all" ? "No jobs" : `No job here is ${this.#wanted.replace("_", " ")}`, "Looking at jobs leases none of them.") : nothing}
      ${this.#more || this.#text ? html`<p class="foot soft">${plural(this.#jobs.length, "job")} searched, seqs ${whole(this.#jobs[0]?.$seq)} to
        ${whole(this.#jobs.at(-1)?.$seq)}${this.#more ? "; there are more" : ""}.</p>` : nothing}`;
  }
}

customElements.define("topic-jobs", TopicJobs);
