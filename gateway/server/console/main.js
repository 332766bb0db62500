// The console's frame: navigation, what is shown for which address, the keyboard, light and dark, the dialogs.

import {access, hasKey, useKey} from "./api.js";
import {service} from "./service.js";
import {View, closes, go, html, nothing, typing} from "./ui.js";
import "./views/consumers.js";
import "./views/overview.js";
import "./views/queues.js";
import "./views/routers.js";
import "./views/topic.js";
import "./views/topics.js";

const PLACES = [
  {name: "Overview", at: "#/", keys: "o", icon: "M4 13h6V4H4zM14 20h6V4h-6zM4 20h6v-4H4z"},
  {name: "Topics", at: "#/topics", keys: "t", icon: "M4 6h16M4 12h16M4 18h10"},
  {name: "Queues", at: "#/queues", keys: "q", icon: "M4 5h10M4 12h10M4 19h10M18 8v8m-3-3 3 3 3-3"},
  {name: "Consumers", at: "#/consumers", keys: "c", icon: "M4 6h7M4 12h13M4 18h4M15 3v6M20 9v6M11 15v6"},
  {name: "Routers", at: "#/routers", keys: "r", icon: "M5 9a3 3 0 1 0 0-6 3 3 0 0 0 0 6ZM19 21a3 3 0 1 0 0-6 3 3 0 0 0 0 6ZM8 6h6a3 3 0 0 1 3 3v6"},
];
const THEMES = ["auto", "light", "dark"];
const SHORTCUTS = [
  ["/", "search"],
  ["j  k", "next and previous row"],
  ["Enter", "open the row"],
  ["g o", "overview"],
  ["g t", "topics"],
  ["g q", "queues"],
  ["g c", "consumers"],
  ["g r", "routers"],
  ["Shift+K", "give or forget a key"],
  ["?", "this help"],
  ["Esc", "close, or leave a field"],
];
const STATES = {ready: "good", asking: "", "not ready": "warn", "key needed": "warn", unreachable: "bad"};

// The theme that the browser keeps, after it was given a new one, if any. Where it keeps nothing, there is none.
function stored(theme) {
  try {
    if (theme) localStorage.setItem("theme", theme);
    return localStorage.getItem("theme");
  } catch {
    return null;
  }
}

class TopicsConsole extends View {
  #theme = THEMES.find(theme => theme === stored()) ?? "auto";
  #going = 0; // when g was pressed
  #asked = false; // whether the dialog came up by itself for this key

  begin() {
    this.on(window, "hashchange", () => this.#arrive());
    this.on(document, "keydown", event => this.#press(event));
    this.on(service, "change", () => this.draw());
    this.on(access, "change", () => {
      this.#asked = false;
      this.draw();
    });
    this.on(access, "refused", () => this.#askForKey());
    this.#wear(this.#theme);
    service.start();
  }

  #arrive() {
    document.querySelectorAll("dialog[open]").forEach(dialog => dialog.close());
    window.scrollTo(0, 0);
    this.draw();
    queueMicrotask(() => this.querySelector("main")?.focus({preventScroll: true}));
  }

  get #where() {
    const [place = "", name = "", tab = ""] = location.hash.replace(/^#\/?/, "").split("/");
    try {
      return {place, name: decodeURIComponent(name), tab};
    } catch {
      return {place, name: "", tab}; // not an address that the console made
    }
  }

  #press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape" && typing(event.target)) event.target.blur();
    if (typing(event.target) || document.querySelector("dialog[open]")) return;
    const chord = Date.now() - this.#going < 1500 && PLACES.find(place => place.keys === event.key);
    this.#going = event.key === "g" ? Date.now() : 0;
    const actions = {
      "/": () => this.querySelector("[data-search]")?.focus(),
      "?": () => this.#open("help"),
      K: () => this.#open("key"),
      j: () => this.#step(1),
      k: () => this.#step(-1),
    };
    if (chord) go(chord.at);
    else if (actions[event.key]) actions[event.key]();
    else return;
    event.preventDefault();
  }

  #step(by) {
    const rows = [...this.querySelectorAll("[data-row]")];
    const at = rows.indexOf(document.activeElement);
    const next = rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(Math.max(at + by, 0), rows.length - 1)];
    next?.focus();
    next?.scrollIntoView({block: "nearest"});
  }

  #open(id) {
    const dialog = this.querySelector(`dialog#${id}`);
    if (dialog && !dialog.open) dialog.showModal();
  }

  #askForKey() {
    if (!this.#asked) this.#open("key");
    this.#asked = true;
  }

  #wear(theme) {
    this.#theme = theme;
    document.documentElement.dataset.theme = theme;
    stored(theme);
    this.draw();
  }

  #view({place, name, tab}) {
    if (place === "topics" && name) return html`<topic-view .topic=${name} .at=${tab}></topic-view>`;
    if (place === "queues") return html`<queues-view></queues-view>`;
    if (place === "consumers") return html`<consumers-view></consumers-view>`;
    if (place === "routers") return html`<routers-view></routers-view>`;
    if (place === "topics") return html`<topics-list></topics-list>`;
    return html`<service-overview></service-overview>`;
  }

  template() {
    const where = this.#where;
    const current = "#/" + where.place;
    document.title = [where.name, PLACES.find(each => each.at === current)?.name, "topics console"].filter(Boolean).join(" · ");
    const {state} = service;
    return html`
      <a class="skip" href="#main" @click=${event => this.#skip(event)}>Skip to the content</a>
      <header class="side">
        <a class="brand" href="/" title="The front page of the service"><span class="mark" aria-hidden="true"></span>topics</a>
        <nav aria-label="Console">
          ${PLACES.map(each => html`<a href=${each.at} aria-current=${each.at === current ? "page" : nothing}>
            <svg viewBox="0 0 24 24" aria-hidden="true"><path d=${each.icon} /></svg>${each.name}</a>`)}
        </nav>
        <div class="tools">
          <span class="state ${STATES[state]}" role="status" id="state">${state}</span>
          <button class="quiet" @click=${() => this.#open("key")} id="open-key">${hasKey() ? "Key in use" : "Key"}</button>
          <button class="quiet" @click=${() => this.#wear(THEMES[(THEMES.indexOf(this.#theme) + 1) % 3])}
            aria-label="Colours: ${this.#theme}. Change" id="theme">${this.#theme[0].toUpperCase() + this.#theme.slice(1)}</button>
          <button class="quiet wide-only" @click=${() => this.#open("help")} aria-label="Keyboard shortcuts">?</button>
        </div>
      </header>
      <main id="main" tabindex="-1">${this.#banner()}${this.#view(where)}</main>
      ${this.#keyDialog()} ${this.#helpDialog()}`;
  }

  #skip(event) {
    event.preventDefault();
    this.querySelector("main").focus();
  }

  #banner() {
    if (service.state === "unreachable") {
      return html`<div class="notice bad banner" role="alert"><b>${service.error.message}</b>
        <span class="soft">${service.error.remedy}</span></div>`;
    }
    if (service.state === "key needed") {
      return html`<div class="notice banner" role="alert"><b>This service asks for a key.</b>
        <button class="primary" @click=${() => this.#open("key")}>Give a key</button></div>`;
    }
    const down = service.shards.filter(shard => !shard.up);
    if (!down.length) return nothing;
    const names = down.map(shard => `shard ${shard.shard} (${shard.phase})`).join(", ");
    return html`<div class="notice warn banner" role="alert" id="shards-down"><b>Not served at this time: ${names}.</b>
      <span class="soft">${service.ready?.message ?? ""} Topics of the other shards are served.</span></div>`;
  }

  #keyDialog() {
    const give = event => {
      event.preventDefault();
      const field = event.target.elements.key;
      useKey(field.value);
      field.value = "";
      event.target.closest("dialog").close();
    };
    const refused = hasKey() && service.error?.status === 401;
    return html`<dialog id="key" aria-labelledby="key-title"><form @submit=${give}>
      <h2 id="key-title">Key</h2>
      <p class="soft">Kept in the memory of this page until it is closed, and sent as a header. It is never stored, and never part of an address.</p>
      ${refused ? html`<div class="notice bad" role="alert"><b>${service.error.message}</b></div>` : nothing}
      <label class="field">API key<input name="key" type="password" autocomplete="off" spellcheck="false" ?required=${!hasKey()}
        pattern="\\s*[!-~]+\\s*" title="A key has no spaces, and no letters with accents" autofocus></label>
      <div class="actions">
        ${hasKey() ? html`<button type="button" @click=${event => { useKey(""); location.reload(); }}>Forget it</button>` : nothing}
        <button type="button" @click=${closes}>Cancel</button>
        <button class="primary">Use it</button>
      </div></form></dialog>`;
  }

  #helpDialog() {
    return html`<dialog id="help" aria-labelledby="help-title">
      <h2 id="help-title">Keyboard</h2>
      <dl class="shortcuts">${SHORTCUTS.map(([keys, what]) => html`<dt>${keys.split(" ").filter(Boolean).map(key => html`<kbd>${key}</kbd> `)}</dt><dd>${what}</dd>`)}</dl>
      <div class="actions"><button class="primary" @click=${closes}>Close</button></div></dialog>`;
  }
}

customElements.define("topics-console", TopicsConsole);
