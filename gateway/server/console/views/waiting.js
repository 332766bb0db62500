// In place of what the metrics would show: why they are not here.

import {service} from "../service.js";
import {html, problem} from "../ui.js";

export const waiting = () =>
  [401, 0].includes(service.error?.status) || !service.error ? html`<p class="soft">Asking the service…</p>` : html`<div class="after-head">${problem(service.error)}</div>`;
