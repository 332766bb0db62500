// What views are made of: a custom element that draws itself, and small pieces that many of them show.

import {html, nothing, render} from "./vendor/lit-html.js";

export {html, nothing};
export {svg} from "./vendor/lit-html.js";

export class View extends HTMLElement {
  error = null;
  #drawing = false;
  #leaving = new AbortController();

  connectedCallback() {
    this.#leaving = new AbortController();
    this.begin();
    this.draw();
  }

  disconnectedCallback() {
    this.#leaving.abort();
    this.end();
  }

  begin() {}
  end() {}
  template() {}

  get left() {
    return this.#leaving.signal.aborted;
  }

  // Draw soon, once for all changes of this turn.
  draw() {
    if (this.#drawing) return;
    this.#drawing = true;
    queueMicrotask(() => {
      this.#drawing = false;
      if (this.isConnected) {
        render(this.template(), this);
        this.drawn?.();
      }
    });
  }

  on(target, type, listener) {
    target.addEventListener(type, listener, {signal: this.#leaving.signal});
  }

  // Run now and then every `ms`, one run at a time, and not while the page is hidden.
  async every(ms, run) {
    const {signal} = this.#leaving;
    let timer;
    signal.addEventListener("abort", () => clearTimeout(timer)); // one for all runs
    for (;;) {
      if (!document.hidden) await this.attempt(run);
      if (signal.aborted) return;
      await new Promise(resolve => (timer = setTimeout(resolve, ms)));
    }
  }

  // Forget what was drawn: the next drawing makes new elements.
  clear() {
    render(nothing, this);
  }

  // Run and draw. What the service refuses is shown in place of being thrown.
  async attempt(run) {
    try {
      const result = await run.call(this);
      this.error = null;
      return result;
    } catch (error) {
      if (error.status === undefined) throw error;
      this.error = error;
      return undefined;
    } finally {
      this.draw();
    }
  }
}

export const problem = error =>
  error
    ? html`<div class="notice bad" role="alert">
        <b>${error.message}</b>
        ${error.remedy ? html`<span class="soft">${error.remedy}</span>` : nothing}
        <code class="code">${error.code}</code>
      </div>`
    : nothing;

export const done = text => (text ? html`<div class="notice good" role="status">${text}</div>` : nothing);

export const empty = (title, text, action = nothing) =>
  html`<div class="empty"><b>${title}</b><span class="soft">${text}</span>${action}</div>`;

export const search = (placeholder, label, found) => html`<input type="search" data-search placeholder=${placeholder} aria-label=${label}
  spellcheck="false" autocapitalize="off" @input=${event => found(event.target.value.trim())}>`;

export const closes = event => event.target.closest("dialog").close();

export const pill = (kind, text) => html`<span class="pill ${kind}">${text}</span>`;

export const fact = (label, value, note = nothing) =>
  html`<div class="fact"><span class="label">${label}</span><span class="value">${value}</span>${
    note === nothing ? nothing : html`<span class="note">${note}</span>`
  }</div>`;

// A name may be broken after a separator of its parts, and nowhere else.
export const named = name => name.split(/(?<=[:._-])/).map(part => html`${part}<wbr>`);

export const link = (topic, tab = "") => `#/topics/${encodeURIComponent(topic)}${tab ? "/" + tab : ""}`;

export const go = where => {
  location.hash = where;
};

export const typing = target => target.matches?.("input, textarea, select, [contenteditable]");
