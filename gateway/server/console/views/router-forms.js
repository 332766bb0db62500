// The button that makes a router, with its dialog, and the button that deletes one, with a question that names it.

import {put, remove} from "../api.js";
import {View, closes, html, nothing, problem} from "../ui.js";

const path = router => "/v0/routers/" + encodeURIComponent(router);

// Tells its parents, with the event "routers", that there is another router or one fewer.
class Form extends View {
  changed() {
    this.querySelector("dialog").close();
    this.dispatchEvent(new Event("routers", {bubbles: true}));
  }

  ask() {
    this.error = null;
    this.draw();
    this.querySelector("dialog").showModal();
  }
}

class NewRouter extends Form {
  source = "";

  async #make(event) {
    event.preventDefault();
    const {name, source, dest, filter, guarantee, preserve_node, preserve_tag, create_dest, allow_cycle} = event.target.elements;
    const asked = {source: source.value, dest: dest.value, guarantee: guarantee.value, preserve_node: preserve_node.checked, preserve_tag: preserve_tag.checked,
      create_dest: create_dest.checked, allow_cycle: allow_cycle.checked};
    if (filter.value) asked.filter = filter.value.endsWith("*") ? ["tag", "Glob", filter.value] : filter.value;
    await this.attempt(async () => {
      await put(path(name.value || `${source.value}->${dest.value}`), asked);
      event.target.reset();
      this.changed();
    });
  }

  template() {
    return html`<button class="primary" id="new-router" @click=${() => this.ask()}>New router</button>
      <dialog aria-labelledby="nr-title"><form @submit=${event => this.#make(event)}>
        <h2 id="nr-title">New router</h2>
        ${problem(this.error)}
        <div class="pair"><label class="field">From topic<input name="source" required maxlength="255" .defaultValue=${this.source} spellcheck="false" autocapitalize="off" autocomplete="off"></label>
        <label class="field">To topic<input name="dest" required maxlength="255" spellcheck="false" autocapitalize="off" autocomplete="off"></label></div>
        <label class="field">Name <span class="soft">empty: from-&gt;to. A router of this name is changed</span>
          <input name="name" maxlength="255" spellcheck="false" autocapitalize="off" autocomplete="off"></label>
        <label class="field">Only records with the tag <span class="soft">empty: all. A star at its end matches tags that begin so</span>
          <input name="filter" spellcheck="false" autocapitalize="off"></label>
        <label class="field">Guarantee<select name="guarantee"><option value="at_least_once">at least once: a crash may copy a record again</option>
          <option value="exactly_once">exactly once: each record has one copy</option></select></label>
        <label class="check"><input type="checkbox" name="preserve_node" checked>Copies keep their node</label>
        <label class="check"><input type="checkbox" name="preserve_tag" checked>Copies keep their tag</label>
        <label class="check"><input type="checkbox" name="create_dest" checked>Make the destination if there is none</label>
        <label class="check"><input type="checkbox" name="allow_cycle">It may close a cycle</label>
        <div class="actions"><button type="button" @click=${closes}>Cancel</button>
          <button class="primary">Make it</button></div>
      </form></dialog>`;
  }
}

class DeleteRouter extends Form {
  #router = null; // {router, source, dest}
  #asked = null; // the one that the dialog names: the row may get another one meanwhile

  set router(router) {
    this.#router = router;
    this.draw();
  }

  ask() {
    this.#asked = this.#router;
    super.ask();
  }

  async #delete(event) {
    event.preventDefault();
    await this.attempt(async () => {
      await remove(path(this.#asked.router));
      this.changed();
    });
  }

  template() {
    if (!this.#router) return nothing;
    const {router, source, dest} = this.#asked ?? this.#router;
    return html`<button class="quiet danger" aria-label="Delete the router ${this.#router.router}" @click=${() => this.ask()}>Delete</button>
      <dialog aria-label="Delete the router ${router}"><form @submit=${event => this.#delete(event)}>
        <h2>Delete the router ${router}?</h2>
        ${problem(this.error)}
        <p class="soft">What is appended to ${source} is no longer copied to ${dest}. What was copied stays.</p>
        <div class="actions"><button type="button" @click=${closes}>Cancel</button>
          <button class="danger">Delete it</button></div>
      </form></dialog>`;
  }
}

customElements.define("new-router", NewRouter);
customElements.define("delete-router", DeleteRouter);
