// SPDX-License-Identifier: Apache-2.0
// Makes elements. All text becomes text nodes: names come from strangers, and none of them is ever read as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element. attributes: "on..." functions are listeners, false and null are left out, true is present. */
export function el(tag, attributes = {}, ...children) {
  return build(document.createElement(tag), attributes, children);
}

/** An SVG element, in the same way. */
export function svg(tag, attributes = {}, ...children) {
  return build(document.createElementNS(SVG, tag), attributes, children);
}

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) set(node, name, value);
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

function set(node, name, value) {
  if (value === false || value === null || value === undefined) node.removeAttribute(name);
  else if (typeof value === "function") node.addEventListener(name.slice(2), value);
  else node.setAttribute(name, value === true ? "" : String(value));
}

/** Sets attributes of an element that is there, where they differ. */
export function put(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    const wanted = value === true ? "" : value === false || value === null ? null : String(value);
    if (node.getAttribute(name) !== wanted) set(node, name, value);
  }
}

/** Sets the text of an element, where it differs, so that a selection of it survives. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function by(id) {
  return document.getElementById(id);
}

/**
 * Keeps one child of ``parent`` for every item, in their order, without touching what stays: focus is not lost.
 *
 * make(item) returns an element; update(element, item) sets what changes. Both may keep parts in element.parts.
 */
export function keyed(parent, items, key, make, update) {
  const known = new Map([...parent.children].filter((child) => child.itemKey !== undefined)
    .map((child) => [child.itemKey, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    let node = known.get(name);
    known.delete(name);
    if (!node) {
      node = make(item);
      node.itemKey = name;
    }
    if (node === place) place = place.nextElementSibling;
    else parent.insertBefore(node, place);
    update(node, item);
  }
  for (const node of known.values()) node.remove();
  while (place) {
    const next = place.nextElementSibling;
    if (place.itemKey === undefined) place.remove();
    place = next;
  }
}
