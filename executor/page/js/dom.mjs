// Nodes are made here and nowhere else: elements by name, texts as texts. There is no way from a string to markup.

const SVG = 'http://www.w3.org/2000/svg';

/**
 * An element. `attributes` with the value null, undefined or false are left out; `on` holds listeners.
 * @param {string} name
 * @param {Record<string, any>} [attributes]
 * @param {...(Node|string|null|undefined|false)} children
 * @returns {any}
 */
export function h(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** The same for SVG. @returns {any} */
export function s(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key === 'on') for (const [event, heard] of Object.entries(value)) node.addEventListener(event, heard);
    else set(node, key, value);
  }
  for (const child of children) if (child || child === '') node.append(child);
  return node;
}

/** Sets an attribute, or takes it away; nothing is done where it has the value. */
export function set(node, key, value) {
  if (value === null || value === undefined || value === false) {
    if (node.hasAttribute(key)) node.removeAttribute(key);
    return;
  }
  const text = value === true ? '' : String(value);
  if (node.getAttribute(key) !== text) node.setAttribute(key, text);
}

/** Sets a node's text; nothing is done where it says that already. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Puts these in the place of all children. */
export function fill(node, ...children) {
  node.replaceChildren(...children.filter((child) => child || child === ''));
}

/** Makes these the children, in this order. Those that are there stay where they are, with the focus that they hold. */
export function arrange(node, children) {
  const wanted = new Set(children);
  for (const child of [...node.children]) if (!wanted.has(child)) child.remove();
  for (const [at, child] of children.entries()) {
    if (node.children[at] !== child) node.insertBefore(child, node.children[at] ?? null);
  }
}

/** Shows or hides a node. */
export function show(node, shown) {
  if (node.hidden === Boolean(shown)) node.hidden = !shown;
}

/** A button that looks like one. */
export function button(text, pressed, attributes = {}) {
  return h('button', { type: 'button', ...attributes, on: { click: pressed } }, text);
}

const PATHS = {
  pending: 'M8 3a5 5 0 1 0 0 10A5 5 0 0 0 8 3Z',
  running: 'M8 3a5 5 0 1 0 5 5M8 8V3.5',
  waiting: 'M6 4v8M10 4v8',
  completed: 'm3.5 8.5 3 3 6-7',
  failed: 'm4 4 8 8m0-8-8 8',
  skipped: 'm4 4 4 4-4 4m5-8 4 4-4 4',
  cancelled: 'M8 3a5 5 0 1 0 0 10A5 5 0 0 0 8 3ZM4.5 11.5l7-7',
  partial: 'M8 3a5 5 0 1 0 0 10A5 5 0 0 0 8 3ZM5 8h6',
};
const LIKE = { queued: 'pending', needs_decision: 'waiting', budget_exceeded: 'partial', ready: 'pending' };

/** The kind of look that a status has. */
export function kindOf(status) {
  return LIKE[status] ?? (status in PATHS ? status : 'pending');
}

/** The sign of a status: shapes, not colours alone. */
export function sign(status) {
  const path = s('path', { d: PATHS[kindOf(status)] });
  return s('svg', { class: 'sign', viewBox: '0 0 16 16', 'aria-hidden': 'true', 'data-kind': kindOf(status) }, path);
}

/** Turns a sign to another status. */
export function turn(mark, status) {
  set(mark, 'data-kind', kindOf(status));
  set(mark.firstChild, 'd', PATHS[kindOf(status)]);
}
