// JSON as a tree: <json-tree .text=${json}>. Objects and arrays open and close; what is closed is not in the document, and
// of what is open, some hundred entries at a time. Numbers, texts and keys stand as they were sent.

import {elements, kindOf, members} from "../json.js";
import {compact, plural} from "../format.js";
import {View, html, nothing} from "../ui.js";

const ENTRIES = 100; // of one object or array, at first and with each click
const MOST_TEXT = 2000; // characters of one text
const OPEN_DEPTH = 3; // open at first above this depth,
const OPEN_SIZE = 4000; // if no longer than this
const COUNTED = 100000; // what is longer is not counted through

class JsonTree extends View {
  #text = "";
  #open = new Map(); // path → whether
  #shown = new Map(); // path → how many entries, or the whole of a text

  set text(text) {
    if (text === this.#text) return;
    this.#text = text;
    this.#open.clear();
    this.#shown.clear();
    this.draw();
  }

  template() {
    return html`<div class="json" role="group" aria-label="JSON">${this.#value(this.#text.trim(), "", nothing, "", 0)}</div>`;
  }

  #value(text, path, key, comma, depth) {
    const kind = kindOf(text);
    if (kind !== "object" && kind !== "array") return html`<div class="leaf">${key}${this.#leaf(text, kind, path)}${comma}</div>`;
    const [first, last] = kind === "object" ? "{}" : "[]";
    if (text.slice(1, -1).trim() === "") return html`<div class="leaf">${key}${first}${last}${comma}</div>`;
    const open = this.#open.get(path) ?? (depth === 0 || (depth < OPEN_DEPTH && text.length <= OPEN_SIZE));
    return html`<details .open=${open} @toggle=${event => this.#toggled(event, path, open)} @keydown=${event => this.#pressed(event, path, open)}>
      <summary>${key}${first}${open ? nothing : html`<span class="soft"> ${size(text, kind)} </span>${last}${comma}`}</summary>
      ${open ? html`${this.#entries(text, kind, path, depth)}<div class="leaf">${last}${comma}</div>` : nothing}</details>`;
  }

  #entries(text, kind, path, depth) {
    const most = this.#shown.get(path) ?? ENTRIES;
    const found = [];
    let more = false;
    for (const entry of kind === "object" ? members(text) : elements(text)) {
      if (found.length === most) {
        more = true;
        break;
      }
      found.push(kind === "object" ? entry : [null, entry]);
    }
    const lines = found.map(([key, value], at) => {
      const comma = more || at < found.length - 1 ? "," : "";
      return this.#value(value, `${path}/${at}`, key === null ? nothing : html`<span class="key">${key}</span>: `, comma, depth + 1);
    });
    return html`<div class="entries">${lines}${more ? html`<button class="quiet" @click=${() => this.#show(path, most + ENTRIES)}>${ENTRIES} more</button>` : nothing}</div>`;
  }

  #leaf(text, kind, path) {
    if (text.length <= MOST_TEXT || this.#shown.has(path)) return html`<span class=${kind}>${text}</span>`;
    return html`<span class=${kind}>${text.slice(0, MOST_TEXT)}</span>… <button class="quiet" @click=${() => this.#show(path, Infinity)}>All
      ${compact(text.length)} characters</button>`;
  }

  #show(path, most) {
    this.#shown.set(path, most);
    this.draw();
  }

  #set(path, open) {
    this.#open.set(path, open);
    this.draw();
  }

  #toggled({target}, path, was) {
    if (target.open !== was) this.#set(path, target.open); // else the drawing has done it
  }

  // As trees have it: to the right opens, to the left closes. Enter and the space bar do both by themselves.
  #pressed(event, path, open) {
    const wanted = {ArrowRight: true, ArrowLeft: false}[event.key];
    if (wanted === undefined || event.target.localName !== "summary") return;
    event.stopPropagation();
    event.preventDefault();
    if (open !== wanted) this.#set(path, wanted);
  }
}

function size(text, kind) {
  if (text.length > COUNTED) return `${compact(text.length)} characters`;
  const entries = [...(kind === "object" ? members(text) : elements(text))].length;
  return kind === "object" ? plural(entries, "field") : plural(entries, "item");
}

customElements.define("json-tree", JsonTree);
