// The configuration of a topic: seen, changed, and the topic deleted.

import {put, post, remove, topicPath} from "../api.js";
import {plural} from "../format.js";
import {View, closes, done, go, html, nothing, problem} from "../ui.js";

const CHOICES = {durability: ["ephemeral", "memory", "disk", "fsync"], discard: ["old", "reject"]};
const OF_QUEUES = new Set(["lease_ms", "claim_jitter_ms", "max_deliveries", "dead_letter", "leases_durable"]);
const FIXED = new Set(["type", "durable"]); // `durable` says the same as `durability`
const ABOUT = {
  ttl_ms: "older records expire; 0: never",
  cap_records: "most records; 0: no cap",
  cap_bytes: "most bytes; 0: no cap",
  discard: "at a cap: drop the oldest, or refuse writes",
  durability: "what an acknowledged write survives",
  priority: "order under load; empty: by use",
  lease_ms: "how long a worker may hold a job",
  max_deliveries: "then the job is a dead letter; 0: no limit",
  dead_letter: "topic of the dead letters; empty: none",
};

class TopicSettings extends View {
  #state = null;
  #done = "";
  topic = "";

  set state(state) {
    const first = !this.#state;
    this.#state = state;
    if (first) this.draw(); // not again: the form may be in use
  }

  get #fields() {
    const queue = this.#state.type === "queue";
    return Object.entries(this.#state.config).filter(([name]) => !FIXED.has(name) && (queue || !OF_QUEUES.has(name)));
  }

  async #save(event) {
    event.preventDefault();
    const changed = {};
    for (const [name, before] of this.#fields) {
      const field = event.target.elements[name];
      const typed = field.type === "number" ? Number(field.value) : field.value;
      const value = field.type === "checkbox" ? field.checked : field.value === "" ? null : typed;
      if (value !== before) changed[name] = value;
    }
    this.#done = "";
    await this.attempt(async () => {
      const answer = await put(topicPath(this.topic), changed);
      this.#state = {...this.#state, config: answer.config};
      this.#done = Object.keys(changed).length ? `Saved: ${Object.keys(changed).join(", ")}.` : "Nothing was changed.";
    });
  }

  async #deleteRecords(event) {
    event.preventDefault();
    const {before, tag} = event.target.elements;
    const asked = {};
    if (before.value) asked.before_seq = Number(before.value);
    if (tag.value) asked.match = tag.value.endsWith("*") ? ["tag", "Glob", tag.value] : tag.value;
    await this.attempt(async () => {
      const {deleted} = await post(topicPath(this.topic) + "/delete", asked);
      this.#done = `${plural(deleted, "record")} deleted.`;
      event.target.reset();
    });
    this.querySelector("#delete-records").close();
  }

  async #deleteTopic(event) {
    event.preventDefault();
    await this.attempt(async () => {
      await remove(topicPath(this.topic));
      go("#/topics");
    });
    this.querySelector("#delete-topic")?.close();
  }

  template() {
    if (!this.#state) return nothing;
    return html`${problem(this.error)} ${done(this.#done)}
      <form class="card form" @submit=${event => this.#save(event)}>
        <div class="settings">${this.#fields.map(([name, value]) => this.#field(name, value))}</div>
        <div class="actions"><button class="primary" id="save">Save</button></div></form>
      <section class="card"><h2>Delete</h2>
        <p class="soft">Permanently. Readers are notified of a deleted topic, not of deleted records.</p>
        <button class="danger" @click=${() => this.querySelector("#delete-records").showModal()}>Delete records…</button>
        <button class="danger" @click=${() => this.querySelector("#delete-topic").showModal()}>Delete the topic…</button></section>
      <dialog id="delete-records" aria-labelledby="dr-title"><form @submit=${event => this.#deleteRecords(event)}>
        <h2 id="dr-title">Delete records</h2>
        <p class="soft">Those that fulfil both fields, as far as given.</p>
        <label class="field">with a seq below<input name="before" type="number" min="1"></label>
        <label class="field">with the tag <span class="soft">a star at its end matches tags that begin so</span>
          <input name="tag" spellcheck="false"></label>${this.#actions("Delete them")}</form></dialog>
      <dialog id="delete-topic" aria-labelledby="dt-title"><form @submit=${event => this.#deleteTopic(event)}>
        <h2 id="dt-title">Delete ${this.topic}</h2>
        <p class="soft">With ${plural(this.#state.count, "record")}, its cursors, and the routers from and to it.</p>
        <label class="field">Type its name<input name="name" required pattern=${this.topic.replace(/[.]/g, "\\.")} autocomplete="off" spellcheck="false"></label>${this.#actions("Delete it")}</form></dialog>`;
  }

  #actions(text) {
    return html`<div class="actions"><button type="button" @click=${closes}>Cancel</button>
      <button class="danger">${text}</button></div>`;
  }

  #field(name, value) {
    const input = typeof value === "boolean" ? html`<input type="checkbox" name=${name} .checked=${value}>`
      : CHOICES[name] ? html`<select name=${name}>${CHOICES[name].map(each => html`<option ?selected=${each === value}>${each}</option>`)}</select>`
        : html`<input name=${name} type=${name === "dead_letter" ? "text" : "number"} .value=${String(value ?? "")} spellcheck="false">`;
    return html`<label class="setting"><span><b>${name}</b><span class="soft">${ABOUT[name] ?? ""}</span></span>${input}</label>`;
  }
}

customElements.define("topic-settings", TopicSettings);
