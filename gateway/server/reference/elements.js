// Elements of the page. All texts become text nodes.

/** An element with attributes and children; strings become text. */
export function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Text with `code` in it. */
export function prose(text = "") {
  return text.split(/`([^`]*)`/).map((part, n) => (n % 2 ? el("code", {}, part) : part));
}
