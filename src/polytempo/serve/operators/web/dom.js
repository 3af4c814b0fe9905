// Elements and words. Text goes in as text only: much of it comes from clients, and nobody vouches for them.

const SVG = "http://www.w3.org/2000/svg";

export const find = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function draw(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  const there = children.filter((child) => child !== null);
  element.append(...there.map((child) => (child instanceof Node ? child : String(child))));
  return element;
}

// Nothing is touched that stays as it is, so that selections and screen readers are left in peace.
export function say(element, text) {
  const content = String(text);
  if (element.textContent !== content) element.textContent = content;
}

export function show(element, visible) {
  element.hidden = !visible;
}
