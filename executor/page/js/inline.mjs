// Markdown within a line: code, emphasis, links. Work is linear in the text's length, nesting bounded; what is not
// understood stays text. Links lead to http, https and mailto alone, pictures and HTML do not exist.

import { h } from './dom.mjs';
import { visible } from './text.mjs';

/** Levels of nesting. */
const DEEP = 24;
/** Characters of a link's address. */
const ADDRESS = 2_000;
const TOKEN = /\\([!-/:-@[-`{-~])|(`+)|(\*+|_+|~~)|(!?\[)|(\]\()|\]|<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>|(https?:\/\/[^\s<>"'`[\]]{1,2000})|((?<! ) {2,}|\\)?\n/g;
const WORD = /[\p{L}\p{N}]/u;

/**
 * @typedef {{left: number}} Budget How many elements may still be made; beyond it text stays text.
 * @typedef {{mark: string, children: (Node|string)[], open?: string}} Frame
 */

/** A link that leads where it says; null where it would lead elsewhere than to a page or an address. */
export function address(text) {
  let url;
  try {
    url = new URL(text.trim());
  } catch {
    return null;
  }
  return ['http:', 'https:', 'mailto:'].includes(url.protocol) && text.length <= ADDRESS ? url : null;
}

/** @param {string} text @param {Budget} budget @returns {(Node|string)[]} */
export function inline(text, budget) {
  const reading = new Reading(visible(text), budget);
  reading.all();
  return reading.frames[0].children;
}

class Reading {
  constructor(text, budget) {
    this.text = text;
    this.budget = budget;
    /** @type {Frame[]} */
    this.frames = [{ mark: '', children: [] }];
    this.at = 0;
    /** Lengths of runs of backticks that nothing closes. */
    this.open = new Set();
  }

  all() {
    const token = new RegExp(TOKEN);
    for (let found = token.exec(this.text); found; found = token.exec(this.text)) {
      this.say(this.text.slice(this.at, found.index));
      this.at = token.lastIndex;
      token.lastIndex = this.at = this.token(found) ?? this.at;
    }
    this.say(this.text.slice(this.at));
    while (this.frames.length > 1) this.flatten();
  }

  /** What a token comes to; the index at which reading goes on, where that is not its end. */
  token(found) {
    const [whole, escaped, ticks, marks, bracket, closes, angle, bare, hard] = found;
    if (escaped) return this.say(escaped);
    if (ticks) return this.code(ticks);
    if (marks) return this.emphasis(marks, found.index);
    if (bracket) return this.push(bracket, bracket);
    if (closes) return this.link();
    if (angle) return this.linkTo(angle, [angle.replace(/^mailto:/, '')]);
    if (bare) return this.bare(bare);
    if (whole.endsWith('\n')) return hard && this.made() ? this.put(h('br')) : this.say('\n');
    return this.say(whole);
  }

  top() {
    return this.frames[this.frames.length - 1];
  }

  say(text) {
    if (text) this.put(text);
  }

  put(child) {
    const { children } = this.top();
    if (typeof child === 'string' && typeof children.at(-1) === 'string') children[children.length - 1] += child;
    else children.push(child);
  }

  /** Whether another element may be made. */
  made() {
    this.budget.left -= 1;
    return this.budget.left > 0;
  }

  push(mark, shown) {
    if (this.frames.length > DEEP || this.budget.left <= 0) this.say(shown);
    else this.frames.push({ mark, children: [], open: shown });
  }

  /** The innermost frame was opened by what is only text. */
  flatten() {
    const frame = this.frames.pop();
    this.say(frame.open);
    for (const child of frame.children) this.put(child);
  }

  code(ticks) {
    const end = this.open.has(ticks.length) ? -1 : this.closing(ticks);
    if (end < 0) {
      this.open.add(ticks.length);
      return this.say(ticks);
    }
    let code = this.text.slice(this.at, end).replaceAll('\n', ' ');
    if (code.length > 2 && code.startsWith(' ') && code.endsWith(' ')) code = code.slice(1, -1);
    this.put(this.made() ? h('code', {}, code) : code);
    return end + ticks.length;
  }

  closing(ticks) {
    let end = this.text.indexOf(ticks, this.at);
    while (end >= 0) {
      let after = end + ticks.length;
      if (this.text[after] !== '`') return end;
      while (this.text[after] === '`') after += 1;
      end = this.text.indexOf(ticks, after);
    }
    return -1;
  }

  emphasis(marks, index) {
    const before = this.text[index - 1] ?? ' ';
    const behind = this.text[index + marks.length] ?? ' ';
    const inside = marks[0] === '_' && WORD.test(before) && WORD.test(behind);
    if (marks.length > 3 || inside) return this.say(marks);
    let left = marks.length;
    if (!/\s/.test(before)) while (left > 0 && this.close(marks[0], left)) left -= this.closed;
    if (left > 0 && !/\s/.test(behind)) {
      if (left >= 2) this.push(marks[0].repeat(2), marks[0].repeat(2));
      if (left % 2) this.push(marks[0], marks[0]);
    } else if (left > 0) this.say(marks[0].repeat(left));
    return undefined;
  }

  /** Closes the nearest emphasis of this mark; whether there was one. */
  close(mark, left) {
    for (let at = this.frames.length - 1; at > 0; at -= 1) {
      const { mark: open } = this.frames[at];
      if (open.endsWith('[')) return false;
      if (open[0] !== mark || open.length > left) continue;
      while (this.frames.length - 1 > at) this.flatten();
      const { children } = this.frames.pop();
      this.closed = open.length;
      const name = mark === '~' ? 'del' : open.length === 2 ? 'strong' : 'em';
      if (this.made()) this.put(h(name, {}, ...children));
      else for (const child of children) this.put(child);
      return true;
    }
    return false;
  }

  /** After `](`: the nearest bracket becomes a link, if what follows is an address. */
  link() {
    const at = this.frames.findLastIndex((frame) => frame.mark.endsWith('['));
    const rest = this.text.slice(this.at, this.at + ADDRESS + 300);
    const found = /^\s*<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/.exec(rest);
    if (at < 0 || !found) return this.say('](');
    while (this.frames.length - 1 > at) this.flatten();
    const { mark, children } = this.frames.pop();
    const shown = mark === '![' ? ['[picture] ', ...children] : children;
    this.linkTo(found[1], shown);
    return this.at + found[0].length;
  }

  bare(text) {
    const url = text.replace(/[.,;:!?)\]*_~]+$/, '');
    this.linkTo(url, [url]);
    return this.at - (text.length - url.length);
  }

  linkTo(to, children) {
    const url = address(to);
    const within = this.frames.some((frame) => frame.mark === '[' || frame.mark === '![');
    if (!url || within || !this.made()) {
      for (const child of children) this.put(child);
      if (!url && to) this.say(` (${to})`);
      return undefined;
    }
    const text = children.map((child) => (typeof child === 'string' ? child : child.textContent)).join('');
    this.put(h('a', { href: url.href, rel: 'noopener noreferrer nofollow', target: '_blank', title: visible(url.href) },
      ...children));
    if (misleading(text, url)) this.say(` (${url.host || url.href})`);
    return undefined;
  }
}

/** Whether a link's text names another place than the link leads to. */
function misleading(text, url) {
  text = text.trim().slice(0, 300);
  const full = text.includes('://');
  const named = (full ? /:\/\/([^/?#:@\s\\]*)(?![^/?#\s\\]*@)/u : /^((?:[\p{L}\p{N}-]+[.。．｡])+\p{L}{2,})(?=$|[/:?#])/u).exec(text);
  return url.protocol !== 'mailto:' && (named ? named[1].toLowerCase() !== url.hostname.toLowerCase() : full);
}
