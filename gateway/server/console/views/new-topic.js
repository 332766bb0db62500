// The button that makes a topic, and its dialog.

import {put, topicPath} from "../api.js";
import {View, closes, go, html, link, problem} from "../ui.js";

class NewTopic extends View {
  async #make(event) {
    event.preventDefault();
    const {name, type, durability} = event.target.elements;
    await this.attempt(async () => {
      await put(topicPath(name.value), {type: type.value, durability: durability.value});
      this.querySelector("dialog").close();
      go(link(name.value));
    });
  }

  template() {
    return html`<button class="primary" id="new-topic" @click=${() => this.querySelector("dialog").showModal()}>New topic</button>
      <dialog aria-labelledby="new-title"><form @submit=${event => this.#make(event)}>
        <h2 id="new-title">New topic</h2>
        ${problem(this.error)}
        <label class="field">Name<input name="name" required maxlength="255" pattern="[A-Za-z0-9][A-Za-z0-9._:\\-]*" spellcheck="false" autocapitalize="off" autocomplete="off" autofocus>
          <span class="soft">letters, digits and . _ : -</span></label>
        <label class="field">Kind<select name="type"><option value="log">log: every reader reads everything</option>
          <option value="queue">queue: each job goes to one worker</option></select></label>
        <label class="field">Durability<select name="durability"><option value="disk">disk: survives the death of any process</option>
          <option value="fsync">fsync: survives the loss of power</option>
            <option value="memory">memory: as disk, without the promise</option>
          <option value="ephemeral">ephemeral: gone after a restart</option></select></label>
        <div class="actions"><button type="button" @click=${closes}>Cancel</button>
          <button class="primary">Make it</button></div>
      </form></dialog>`;
  }
}

customElements.define("new-topic", NewTopic);
