// Markdown as nodes, with bounded work: a text grows, what was drawn stays, and only its last block is drawn again;
// what is longer than a screen takes is shown on demand.

import { blocks } from './blocks.mjs';
import { button, h } from './dom.mjs';
import { inline } from './inline.mjs';
import { broken, count, visible } from './text.mjs';

/** Characters that are drawn at first, and with each press of "more". */
const STEP = 40_000;
/** Blocks, likewise: a text may be made of nothing but beginnings. */
const BLOCKS = 600;
/** Elements that one block may become, and rows and cells of a table; what is beyond is text. */
const ELEMENTS = 1_000;
const ROWS = 100;
const COLUMNS = 30;
/** Milliseconds of drawing after which the browser gets a turn. */
const TURN = 8;
/** Characters of an open block from which on it is drawn again less often. */
const HEAVY = 4_000;

/** A text that may grow, drawn as Markdown into `node`. */
export class Markdown {
  constructor(node) {
    this.node = node;
    this.text = '';
    this.limit = STEP;
    this.version = null;
    /** Where the last drawn block begins: it may still change. */
    this.last = 0;
    this.drawnTo = 0;
    /** Blocks that are drawn, and that may be. */
    this.count = 0;
    this.most = BLOCKS;
    this.open = null;
    /** Blocks that are read and not drawn yet. */
    this.queue = null;
    this.timer = 0;
    this.more = button('', () => {
      this.limit = Math.max(this.drawnTo, this.count < this.most ? this.limit : 0) + STEP;
      this.most = this.count + BLOCKS;
      this.draw();
    }, { class: 'more' });
  }

  /** Shows a text; `version`: another one means that it does not go on from what was shown. */
  show(text, version = 0) {
    if (version !== this.version) this.clear();
    this.version = version;
    if (text.length === this.text.length) return;
    this.text = text;
    if (!this.timer) this.draw();
  }

  clear() {
    clearTimeout(this.timer);
    this.timer = this.last = this.drawnTo = this.count = 0;
    this.text = '';
    this.open = this.queue = null;
    this.limit = STEP;
    this.most = BLOCKS;
    this.node.replaceChildren();
  }

  /** Draws what is to be seen and is not drawn yet, for a turn. */
  draw() {
    this.timer = 0;
    const end = Math.min(this.text.length, this.limit);
    const fresh = this.drawnTo < end && this.count < this.most;
    if (fresh) {
      if (this.queue?.end !== end) this.read(end);
      this.drawQueued(performance.now());
    }
    this.rest();
    if (this.queue) this.again(0);
    else if (fresh && end - this.last > HEAVY) this.again(Math.min(1_000, (end - this.last) / 50));
  }

  /** Reads the blocks from the last drawn one on: it may go on. */
  read(end) {
    this.queue = { end, base: this.last, at: 0, blocks: blocks(this.text.slice(this.last, end)) };
    if (this.open) this.count -= 1;
    this.open?.remove();
    this.open = null;
  }

  drawQueued(began) {
    const { base, end, blocks: found } = this.queue;
    const { queue } = this;
    while (queue.at < found.length && this.count < this.most) {
      const block = found[queue.at];
      this.open = drawn(block);
      this.node.append(this.open);
      this.count += 1;
      queue.at += 1;
      this.last = base + block.start;
      this.drawnTo = queue.at < found.length ? base + found[queue.at].start : end;
      if (performance.now() - began > TURN) break;
    }
    if (!found.length) this.drawnTo = end;
    if (queue.at >= found.length || this.count >= this.most) this.queue = null;
  }

  /** Draws on after a while, if there is anything new then. */
  again(milliseconds) {
    this.timer = setTimeout(() => this.draw(), milliseconds);
  }

  rest() {
    const left = this.text.length - (this.count < this.most ? this.limit : this.drawnTo);
    if (left > 0 && !this.queue) {
      this.more.textContent = `Show more (${count(left)} characters left)`;
      this.node.append(this.more);
    } else this.more.remove();
  }
}

/** A text that grows no more, as Markdown. */
export function markdown(text) {
  const node = h('div', { class: 'prose', dir: 'auto' });
  new Markdown(node).show(text);
  return node;
}

function drawn(block, budget = { left: ELEMENTS }) {
  budget.left -= 1;
  if (budget.left <= 0) return h('p', { dir: 'auto' }, visible(block.text ?? plain(block)));
  switch (block.kind) {
    case 'heading': return h(`h${Math.min(6, block.level + 2)}`, { dir: 'auto' }, ...inline(block.text, budget));
    case 'rule': return h('hr');
    case 'code': return h('pre', { tabindex: '0', 'data-language': block.language || null },
      h('code', {}, broken(visible(block.text))));
    case 'quote': return h('blockquote', {}, ...block.blocks.map((one) => drawn(one, budget)));
    case 'list': return list(block, budget);
    case 'table': return table(block, budget);
    default: return h('p', { dir: 'auto' }, ...inline(block.text, budget));
  }
}

function list({ ordered, first, items }, budget) {
  const shown = h(ordered ? 'ol' : 'ul', { start: ordered && first !== 1 ? first : null });
  for (const [at, item] of items.entries()) {
    budget.left -= 1;
    if (budget.left <= 0) {
      shown.append(h('li', { dir: 'auto' }, visible(plain({ items: items.slice(at) }))));
      break;
    }
    const only = item.length === 1 && item[0].kind === 'text';
    shown.append(h('li', { dir: 'auto' },
      ...(only ? inline(item[0].text, budget) : item.map((one) => drawn(one, budget)))));
  }
  return shown;
}

function table({ lines }, budget) {
  const [head, sides, ...rows] = lines;
  const aligned = cells(sides).map((cell) => (/-:$/.test(cell) ? (cell.startsWith(':') ? 'middle' : 'end') : null));
  const row = (line, name) => h('tr', {}, ...cells(line).map((cell, at) =>
    h(name, { class: aligned[at] ?? null, dir: 'auto' }, ...inline(cell, budget))));
  const shown = rows.slice(0, ROWS).filter(() => budget.left > 0).map((line) => {
    budget.left -= COLUMNS / 4;
    return row(line, 'td');
  });
  const left = rows.length - shown.length;
  const drawnTable = h('div', { class: 'wide', tabindex: '0', role: 'group', 'aria-label': 'Table' },
    h('table', {}, h('thead', {}, row(head, 'th')), h('tbody', {}, ...shown)));
  return left ? h('div', {}, drawnTable, h('pre', { class: 'plain', dir: 'auto' }, broken(visible(rows.slice(-left).join('\n'))))) : drawnTable;
}

/** The cells of a table's line; a bar after a backslash is none. */
function cells(line) {
  const found = line.trim().replace(/^\|/, '').split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll('\\|', '|'));
  if (found.at(-1) === '') found.pop();
  return found.slice(0, COLUMNS);
}

function plain(block) {
  if (block.lines) return block.lines.join('\n');
  return (block.blocks ?? block.items?.flat() ?? []).map((one) => one.text ?? plain(one)).join('\n');
}
