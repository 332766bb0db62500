// Routers as a graph: topics from left to right in the order of forwarding, an edge for each router.

import {walk} from "../api.js";
import {compact, plural, whole} from "../format.js";
import {BOX, layout} from "../geometry.js";
import {View, empty, html, link, named, nothing, problem, search, svg} from "../ui.js";
import "./router-forms.js";

const EVERY_MS = 4000;
const MOST = 5000;
const LOOK_FOR = "Part of a topic's name";

class RoutersView extends View {
  #routers = null;
  #whole = true;
  #text = "";
  #rates = new Map();
  #last = null;

  begin() {
    this.on(this, "routers", () => this.attempt(() => this.#load()));
    this.every(EVERY_MS, () => this.#load());
  }

  async #load() {
    const {found, whole} = await walk("/v0/routers", "routers", {}, MOST);
    const now = performance.now();
    const before = this.#last;
    if (before) {
      const seconds = (now - before.at) / 1000;
      const copied = each => each.forwarded_total - (before.counts.get(each.router) ?? each.forwarded_total);
      this.#rates = new Map(found.map(each => [each.router, Math.max(copied(each), 0) / seconds]));
    }
    this.#last = {at: now, counts: new Map(found.map(each => [each.router, each.forwarded_total]))};
    [this.#routers, this.#whole] = [found, whole];
  }

  // The routers around the topics that match: all that are connected with one of them.
  get #matching() {
    if (!this.#text) return this.#routers;
    const near = new Set(this.#routers.flatMap(each => [each.source, each.dest]).filter(topic => topic.includes(this.#text)));
    for (let size = -1; size !== near.size; ) {
      size = near.size;
      for (const {source, dest} of this.#routers) {
        if (near.has(source)) near.add(dest);
        else if (near.has(dest)) near.add(source);
      }
    }
    return this.#routers.filter(each => near.has(each.source));
  }

  template() {
    const routers = this.#routers;
    if (routers === null) return html`<h1>Routers</h1>${problem(this.error)}${this.error ? nothing : html`<p class="soft">Asking the service…</p>`}`;
    const matching = this.#matching;
    const {places, width, height, left} = layout(matching);
    return html`<div class="head">
      <h1>Routers <span class="soft count">${whole(routers.length)}${this.#whole ? "" : " and more"}</span></h1>
        <new-router></new-router></div>
      ${problem(this.error)}
      ${routers.length ? html`<div class="bar">${search(LOOK_FOR, "Show the routers around topics with this in their names", text => { this.#text = text; this.draw(); })}</div>
        ${matching.length
          ? html`<div class="card graph" tabindex="0" role="region" aria-label="Graph of the routers">
              ${this.#graph(matching, places, width, height)}</div>`
          : empty("No topic matches", "The search looks for the text anywhere in the names.")}
        ${left ? html`<p class="foot soft">${plural(left, "topic")} not drawn; search for a part of a name.</p>` : nothing}
        ${this.#table(matching.slice(0, 200))}`
        : empty("No routers yet", "A router copies what is appended to one topic to another: make one here, or PUT /v0/routers/NAME.")}`;
  }

  #graph(routers, places, width, height) {
    const drawn = routers.filter(each => places.has(each.source) && places.has(each.dest));
    return html`<svg class="routers" width=${width} height=${height} viewBox="0 0 ${width} ${height}">
      <defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
        <path d="M0 0L8 4L0 8z" /></marker></defs>
      ${drawn.map(each => this.#edge(each, places.get(each.source), places.get(each.dest)))}
      ${[...places].map(([topic, [x, y]]) => svg`<a class="node" href=${link(topic)} aria-label=${topic}>
        <rect x=${x} y=${y} width=${BOX.width} height=${BOX.height} rx="9" />
          <text x=${x + 14} y=${y + BOX.height / 2 + 4.5}>${topic.length > 25 ? "…" + topic.slice(-24) : topic}</text>
            <title>${topic}</title></a>`)}</svg>`;
  }

  #edge(router, [x, y], [toX, toY]) {
    const rate = this.#rates.get(router.router) ?? 0;
    const [fromX, fromY, endX, endY] = [x + BOX.width, y + BOX.height / 2, toX - 3, toY + BOX.height / 2];
    const bend = endX > fromX ? (endX - fromX) / 2 : 80;
    const said = `${router.router}: ${router.guarantee.replaceAll("_", " ")}, ${whole(router.forwarded_total)} copied${router.waits_for ? `, waits: ${router.waits_for.replaceAll("_", " ")}` : ""}`;
    return svg`<g class="edge ${rate ? "busy" : ""} ${router.guarantee}"><path
      d="M${fromX} ${fromY}C${fromX + bend} ${fromY} ${endX - bend} ${endY} ${endX} ${endY}" marker-end="url(#tip)"><title>${said}</title></path>
      ${rate ? svg`<text x=${toX + 5} y=${toY + BOX.height + 14}>${compact(rate)}/s</text>` : nothing}</g>`;
  }

  #table(routers) {
    return html`<div class="scroll" tabindex="0" role="region" aria-label="Routers"><table class="list"><thead><tr><th>source</th>
      <th>destination</th><th class="wide-only">router</th><th class="wide-only">guarantee</th><th class="n">copied</th><th><span class="hidden">delete</span></th></tr></thead>
      <tbody>${routers.map(each => html`<tr><td class="name"><a data-row href=${link(each.source, "routers")}>${named(each.source)}</a></td>
        <td class="name"><a href=${link(each.dest)}>${named(each.dest)}</a></td>
        <td class="wide-only soft">${each.router}</td><td class="wide-only soft">${each.guarantee.replaceAll("_", " ")}</td>
          <td class="n">${each.waits_for ? html`<span class="soft">waits: ${each.waits_for.replaceAll("_", " ")}</span> ` : nothing}${whole(each.forwarded_total)}</td>
          <td class="n"><delete-router .router=${each}></delete-router></td></tr>`)}</tbody></table></div>`;
  }
}

customElements.define("routers-view", RoutersView);
