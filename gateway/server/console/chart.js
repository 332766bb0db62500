// A plot of the last minutes, in SVG: <line-chart .lines=${[{name, points, kind}]} .format=${f} .span=${ms}>. Points are [time, value];
// a value of null is a gap. The legend shows the newest values, or those under the pointer.

import {View, html, nothing, svg} from "./ui.js";
import {path, roundUp} from "./geometry.js";
import {time} from "./format.js";

const WIDTH = 600;
const HEIGHT = 120;

export class LineChart extends View {
  #lines = [];
  #format = String;
  #pointed = null;
  label = "";
  bytes = false;
  span = 600000;

  set lines(lines) {
    this.#lines = lines;
    this.draw();
  }

  set format(format) {
    this.#format = format;
  }

  begin() {
    this.on(this, "pointermove", event => {
      const area = this.querySelector("svg")?.getBoundingClientRect();
      this.#pointed = area ? (event.clientX - area.left) / area.width : null;
      this.draw();
    });
    this.on(this, "pointerleave", () => {
      this.#pointed = null;
      this.draw();
    });
  }

  template() {
    const until = Math.max(...this.#lines.flatMap(line => line.points.map(([at]) => at)), 0) || Date.now();
    const lines = this.#lines.map(line => ({...line, points: line.points.filter(([at]) => at >= until - this.span)}));
    const all = lines.flatMap(line => line.points);
    const since = Math.max(until - this.span, Math.min(...all.map(([at]) => at), until - 60000));
    const most = roundUp(Math.max(...all.map(([, value]) => value ?? 0), 0), this.bytes);
    const x = at => ((at - since) / (until - since)) * WIDTH;
    const y = value => HEIGHT - (value / most) * (HEIGHT - 4);
    const at = this.#pointed === null ? until : since + this.#pointed * (until - since);
    const shown = lines.map(line => [line, nearest(line.points, at)]);
    const said = shown.map(([line, value]) => `${line.name} ${this.#format(value ?? undefined)}`).join(", ");
    return html`
      <div class="legend">
        ${shown.map(([line, value]) => html`<span class="key ${line.kind}">${line.name} <b>${this.#format(value ?? undefined)}</b></span>`)}
      </div>
      <div class="plot" role="img" aria-label="${this.label}: ${said}">
        <span class="scale">${this.#format(most)}</span>
        <svg viewBox="0 0 ${WIDTH} ${HEIGHT}" preserveAspectRatio="none" aria-hidden="true">
          <line class="rule" x1="0" x2=${WIDTH} y1="4" y2="4" /><line class="rule" x1="0" x2=${WIDTH} y1=${HEIGHT / 2} y2=${HEIGHT / 2} />
          <line class="rule base" x1="0" x2=${WIDTH} y1=${HEIGHT - 0.5} y2=${HEIGHT - 0.5} />
          ${lines.map(line => this.#drawn(line, x, y))}
          ${this.#pointed === null ? nothing : svg`<line class="pointer" x1=${x(at)} x2=${x(at)} y1="0" y2=${HEIGHT} />`}
        </svg>
        <span class="since">${span(until - since)} ago</span>
          <span class="until">${this.#pointed === null ? "now" : time(at).slice(0, 8)}</span>
      </div>`;
  }

  #drawn(line, x, y) {
    const drawn = path(line.points, x, y);
    const known = line.points.filter(([, value]) => value !== null && value !== undefined);
    const area = line.fill && known.length > 1 && !drawn.includes("M", 1)
      ? svg`<path class="area ${line.kind}" d="${drawn}L${x(known.at(-1)[0]).toFixed(1)} ${HEIGHT}L${x(known[0][0]).toFixed(1)} ${HEIGHT}Z" />`
      : nothing;
    return svg`${area}<path class="line ${line.kind}" d=${drawn} />`;
  }
}

const span = ms => (ms >= 90000 ? `${Math.round(ms / 60000)} min` : `${Math.round(ms / 1000)} s`);

function nearest(points, at) {
  let best = null;
  for (const point of points) if (!best || Math.abs(point[0] - at) < Math.abs(best[0] - at)) best = point;
  return best?.[1];
}

customElements.define("line-chart", LineChart);
