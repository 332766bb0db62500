// The samples of an operation: a tab for each language. The language that is chosen in one place is shown in all.

import { el } from "./elements.js";

const choice = new EventTarget();
let chosen = "curl";

/** A sample as it runs against the service of this page. */
const addressed = ({ source }) => source.replaceAll("$TOPICS_URL", location.origin);

function copyButton(text) {
  const button = el("button", { type: "button", class: "copy" }, "Copy");
  button.onclick = async () => {
    const copied = await navigator.clipboard.writeText(text()).then(() => true, () => false);
    button.textContent = copied ? "Copied" : "Not allowed by the browser";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  };
  return button;
}

export function tabs(found = []) {
  if (found.length === 0) return null;
  const code = el("pre", { tabindex: "0", role: "tabpanel" });
  const buttons = found.map(({ label }) => {
    const button = el("button", { type: "button", role: "tab" }, label);
    button.onclick = () => {
      const above = button.getBoundingClientRect().top;
      chosen = label;
      choice.dispatchEvent(new Event("change"));
      window.scrollBy(0, button.getBoundingClientRect().top - above); // samples above have other heights now
    };
    return button;
  });
  const show = () => {
    const shown = found.find(({ label }) => label === chosen) ?? found[0];
    code.textContent = addressed(shown);
    buttons.forEach((button) => button.setAttribute("aria-selected", String(button.textContent === shown.label)));
  };
  choice.addEventListener("change", show);
  show();
  const list = el("div", { class: "tabs", role: "tablist", "aria-label": "Language" }, ...buttons);
  const copy = window.isSecureContext ? copyButton(() => code.textContent) : null;
  return el("div", { class: "samples" }, el("div", { class: "bar" }, list, copy), code);
}
