// The plan as a drawing: where everything stands comes from the server, once a round; what changes is only what each
// node says. So nothing jumps while steps run.

import { h, s, say, set, sign, turn } from '../dom.mjs';
import { now } from '../api.mjs';
import { fitted, widthOf } from '../pen.mjs';
import { duration, line, money, words } from '../text.mjs';

/** Sizes in pixels; from so many steps on nodes are small. */
const LARGE = { width: 196, height: 58, along: 40, across: 12 };
const SMALL = { width: 156, height: 40, along: 32, across: 8 };
const MANY = 24;
/** Screens on which layers stand one below the other, if that fits. */
const NARROW = matchMedia('(max-width: 760px)');
const MARGIN = 6;

export class Dag {
  /** @param {HTMLElement} node @param {(stepId: string) => string} hrefOf */
  constructor(node, hrefOf) {
    this.node = node;
    this.hrefOf = hrefOf;
    /** @type {Map<string, any>} */
    this.nodes = new Map();
    this.layout = null;
    this.selected = null;
    this.svg = s('svg', { class: 'dag', role: 'group', 'aria-label': 'Steps of the plan', on: {
      keydown: (event) => this.onKey(event), focusin: (event) => this.onFocus(event),
    } });
    this.box = h('div', { class: 'dagbox' }, this.svg);
    node.replaceChildren(this.box);
    this.turned = () => this.layout && this.isNarrow() !== this.narrow && this.draw();
    NARROW.addEventListener('change', this.turned);
  }

  close() {
    NARROW.removeEventListener('change', this.turned);
  }

  isNarrow() {
    const wide = this.layout.width * (LARGE.width + LARGE.along);
    return NARROW.matches && wide > this.node.clientWidth && this.layout.height <= 3;
  }

  /** Draws a layout; the steps are those of the fold. */
  show(layout, steps) {
    const first = !this.layout;
    this.layout = layout;
    this.steps = steps;
    this.draw();
    if (first) this.reveal([...steps.values()].find((step) => step.status === 'running' || step.status === 'waiting'));
  }

  /** Shows that part of a large plan, once, in which work is being done. */
  reveal(step) {
    const place = step && this.places.get(step.id);
    if (!place) return;
    const [left, top] = this.at(place.x, place.y);
    this.box.scrollLeft = left + (this.size.width - this.box.clientWidth) / 2;
    this.box.scrollTop = top + (this.size.height - this.box.clientHeight) / 2;
  }

  draw() {
    this.narrow = this.isNarrow();
    const focused = document.activeElement?.closest?.('.dag .step')?.dataset.id;
    const { fontFamily: sans } = getComputedStyle(document.body);
    this.fonts = { text: `11px ${sans}`, small: `10px ${sans}`, name: `600 12px ${getComputedStyle(this.node).getPropertyValue('--mono')}` };
    const { layout } = this;
    const size = this.size = { ...(layout.nodes.length > MANY ? SMALL : LARGE) };
    if (this.narrow) {
      size.width = Math.min(LARGE.width, Math.floor((this.node.clientWidth - 2 * MARGIN) / layout.height) - size.across);
    }
    const step = this.narrow ? [size.width + size.across, size.height + 26] : [size.width + size.along, size.height + size.across];
    this.at = (x, y) => (this.narrow ? [MARGIN + y * step[0], MARGIN + x * step[1]] : [MARGIN + x * step[0], MARGIN + y * step[1]]);
    const [across, down] = this.narrow ? [layout.height, layout.width] : [layout.width, layout.height];
    const width = Math.ceil(across * step[0] + 2 * MARGIN - (this.narrow ? size.across : size.along));
    const height = Math.ceil(down * step[1] + 2 * MARGIN - (this.narrow ? 26 : size.across));
    for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) set(this.svg, name, value);
    this.nodes = new Map();
    this.places = new Map(layout.nodes.map((node) => [node.id, node]));
    const edges = layout.edges.map((edge) => this.edge(edge));
    const nodes = [...layout.nodes].sort((a, b) => a.layer - b.layer || a.y - b.y).map((node) => this.step(node));
    this.edges = edges;
    this.svg.replaceChildren(s('g', { class: 'edges', 'aria-hidden': 'true' }, ...edges.map((edge) => edge.path)), ...nodes);
    for (const id of this.nodes.keys()) this.update(id);
    this.rove();
    if (focused !== undefined) this.focus(focused);
  }

  edge({ from, to, points }) {
    const { width, height } = this.size;
    const begin = ([x, y]) => (this.narrow ? [x + width / 2, y + height] : [x + width, y + height / 2]);
    const end = ([x, y]) => (this.narrow ? [x + width / 2, y] : [x, y + height / 2]);
    const spots = points.map(([x, y]) => this.at(x, y));
    let at = begin(spots[0]);
    let d = `M${at}`;
    for (const [index, spot] of spots.entries()) {
      if (!index) continue;
      const to_ = end(spot);
      const half = this.narrow ? (to_[1] - at[1]) / 2 : (to_[0] - at[0]) / 2;
      d += this.narrow ? `C${at[0]},${at[1] + half} ${to_[0]},${to_[1] - half} ${to_}`
        : `C${at[0] + half},${at[1]} ${to_[0] - half},${to_[1]} ${to_}`;
      at = begin(spot);
      if (index < spots.length - 1) d += `L${at}`;
    }
    return { from, to, path: s('path', { d }) };
  }

  step({ id, x, y }) {
    const [left, top] = this.at(x, y);
    const { width, height } = this.size;
    const mark = sign('pending');
    for (const [name, value] of Object.entries({ x: 9, y: 8, width: 14, height: 14 })) set(mark, name, value);
    const made = {
      mark,
      name: s('text', { class: 'name', x: 28, y: 20 }),
      time: s('text', { class: 'time', x: width - 9, y: 20, 'text-anchor': 'end' }),
      task: height === SMALL.height ? null : s('text', { class: 'task', x: 10, y: 36 }),
      facts: s('text', { class: 'facts', x: 10, y: height - 8 }),
    };
    made.node = s('a', { href: this.hrefOf(id), class: 'step', tabindex: '-1', transform: `translate(${left},${top})` },
      s('rect', { width, height, rx: 3 }), s('rect', { class: 'edge-bar', width: 3, height, rx: 1 }),
      mark, made.name, made.time, made.task, made.facts);
    made.node.dataset.id = id;
    this.nodes.set(id, made);
    return made.node;
  }

  /** Brings a step's node up to date. */
  update(id) {
    const made = this.nodes.get(id);
    const step = this.steps?.get(id);
    if (!made || !step) return;
    const { width } = this.size;
    set(made.node, 'data-status', step.status);
    turn(made.mark, step.status);
    const time = this.timeOf(step);
    say(made.time, time);
    say(made.name, fitted(line(id, 200), this.fonts.name, width - 40 - widthOf(time, this.fonts.text)));
    if (made.task) say(made.task, fitted(line(step.task, 200), this.fonts.text, width - 18));
    const calls = step.toolCalls || step.trail.calls;
    const facts = [step.kept ? 'kept' : null, step.model ? line(step.model, 40) : null,
      step.cost !== null && step.cost !== undefined ? money(step.cost, step.usage?.partial) : null,
      calls ? `${calls} call${calls === 1 ? '' : 's'}` : null].filter(Boolean).join(' · ');
    const waits = step.status === 'pending' || step.status === 'running' ? '' : words(step.status);
    say(made.facts, fitted(facts || waits, this.fonts.small, width - 18));
    set(made.node, 'aria-label', `${line(id, 80)}: ${words(step.status)}${step.kept ? ', kept' : ''}. ${line(step.task, 160)}`);
    for (const edge of this.edges) if (edge.from === id) set(edge.path, 'data-status', step.status);
  }

  timeOf(step) {
    if (step.duration !== null && step.duration !== undefined) return step.startedAt ? duration(step.duration) : '';
    return step.startedAt && step.status === 'running' ? duration(Math.max(0, now() - step.startedAt)) : '';
  }

  /** The clock of those that run. */
  tick() {
    for (const [id, made] of this.nodes) {
      const step = this.steps?.get(id);
      if (step?.status === 'running') say(made.time, this.timeOf(step));
    }
  }

  select(id, scroll = false) {
    this.selected = id;
    if (scroll) this.nodes.get(id)?.node.scrollIntoView({ block: 'nearest', inline: 'nearest' });
    for (const [name, { node }] of this.nodes) set(node, 'aria-current', name === id ? 'true' : null);
    this.rove(id);
  }

  focus(id) {
    this.nodes.get(id)?.node.focus();
  }

  /** One of the nodes can be reached by Tab, the others by the arrows from there. */
  rove(id = this.selected) {
    const there = this.nodes.has(id) ? id : this.nodes.keys().next().value;
    for (const [name, { node }] of this.nodes) set(node, 'tabindex', name === there ? '0' : '-1');
  }

  onFocus({ target }) {
    const id = target.closest?.('.step')?.dataset.id;
    if (id !== undefined) this.rove(id);
  }

  onKey(event) {
    const id = event.target.closest?.('.step')?.dataset.id;
    const ways = this.narrow ? { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }
      : { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const way = ways[event.key];
    if (id === undefined || !way || event.altKey || event.ctrlKey || event.metaKey) return;
    const here = this.places.get(id);
    const there = [...this.places.values()].filter((node) =>
      (way[0] ? Math.sign(node.layer - here.layer) === way[0] : node.layer === here.layer && Math.sign(node.y - here.y) === way[1]));
    const far = (node) => Math.abs(node.layer - here.layer) * 1_000 + Math.abs(node.y - here.y);
    const nearest = there.sort((a, b) => far(a) - far(b))[0];
    if (nearest) this.focus(nearest.id);
    event.preventDefault();
  }
}
