// In place of what the metrics would show: why they are not here.

import {service} from "../service.js";
import {html, problem} from "../ui.js";

export function waiting() {
  if (service.error && ![401, 0].includes(service.error.status)) return html`<div class="after-head">${problem(service.error)}</div>`;
  return html`<p class="soft">${service.error?.status === 401 ? "Waiting for a key." : "Asking the service…"}</p>`;
}
