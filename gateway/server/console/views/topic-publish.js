// A form that publishes one record. What is typed is sent as it is typed, not parsed and written again.

import {post, topicPath} from "../api.js";
import {millis} from "../format.js";
import {View, done, html, nothing, problem} from "../ui.js";

class TopicPublish extends View {
  #done = "";
  #wrong = "";
  topic = "";
  queue = false;

  async #publish(event) {
    event.preventDefault();
    const {data, meta, tag, node, delay} = event.target.elements;
    this.#done = "";
    this.#wrong = wrong("data", data.value) || (meta.value.trim() && wrong("meta", meta.value)) || "";
    if (this.#wrong) return this.draw();
    const members = [`"data":${data.value}`];
    if (meta.value.trim()) members.push(`"meta":${meta.value}`);
    if (tag.value) members.push(`"tag":${JSON.stringify(tag.value)}`);
    if (node.value) members.push(`"node":${JSON.stringify(node.value)}`);
    if (Number(delay?.value)) members.push(`"delay_ms":${Math.round(Number(delay.value) * 1000)}`);
    // One key for one click: what the browser repeats by itself is not written twice.
    const once = JSON.stringify(crypto.randomUUID?.() ?? String(Math.random()));
    await this.attempt(async () => {
      const answer = await post(topicPath(this.topic), `{"records":[{${members.join(",")}}],"create":false,"idempotency_key":${once}}`);
      this.#done = `Published as seq ${answer.first_seq}, in ${millis(answer.performance?.server_total_ms)}.`;
    });
  }

  template() {
    return html`<form class="card form" @submit=${event => this.#publish(event)}>
      ${problem(this.error)} ${done(this.#done)}
      ${this.#wrong ? html`<div class="notice bad" role="alert"><b>${this.#wrong}</b></div>` : nothing}
      <label class="field">Data <span class="soft">any JSON; it is stored as it is typed</span><textarea name="data" spellcheck="false" required .defaultValue=${'{\n  "hello": "world"\n}'}></textarea></label>
      <div class="pair"><label class="field">Tag<input name="tag" maxlength="256" spellcheck="false"></label>
      <label class="field">Node<input name="node" maxlength="128" spellcheck="false"></label>
      ${this.queue ? html`<label class="field">Claimable after, seconds<input name="delay" type="number" min="0" max="86400" step="any"></label>` : nothing}</div>
      <label class="field">Meta <span class="soft">a JSON object, or nothing</span>
        <input name="meta" class="mono" spellcheck="false" placeholder='{"trace": "abc"}'></label>
      <div class="actions"><button class="primary" id="publish">Publish</button></div></form>`;
  }
}

function wrong(what, text) {
  try {
    JSON.parse(text);
    return "";
  } catch (error) {
    return `The ${what} is not JSON: ${error.message}`;
  }
}

customElements.define("topic-publish", TopicPublish);
