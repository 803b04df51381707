// Texts of models, tools and strangers: made visible, cut to what a screen takes, numbers written for people.

import { button, h } from './dom.mjs';

/** Characters of a text that are shown at first, and with each press of "more". */
export const STEP = 20_000;
/** Characters of one line after which it is broken, so that no line is laid out that is a megabyte long. */
const LINE = 2_000;

// Controls that turn the direction of what follows, or are not seen at all. Joiners (U+200C, U+200D) are part of
// scripts and emoji and stay, as do selectors of variants where there is a sign that has some.
const UNSEEN = /[\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180e\u2028\u2029\u3164\uffa0\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]|(?<!\p{Script=Han})[\u{e0100}-\u{e01ef}]|(?<=[\ufe00-\ufe0f])[\ufe00-\ufe0f]/gu;
// eslint-disable-next-line no-control-regex
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g;

/** A text in which nothing is invisible: characters that turn directions or hide stand as their numbers. */
export function visible(text) {
  return text
    .replace(/\r\n?/g, '\n')
    .replace(UNSEEN, (found) => `⟨U+${found.codePointAt(0).toString(16).toUpperCase().padStart(4, '0')}⟩`)
    .replace(CONTROLS, (found) => (found < ' ' ? String.fromCharCode(0x2400 + found.charCodeAt(0)) : '␡'));
}

/** On one line, for titles and cells. */
export function line(text, most = 300) {
  const cut = clipped(String(text ?? ''), most);
  return visible(cut.replace(/\s+/g, ' ').trim()) + (cut.length < (text?.length ?? 0) ? '…' : '');
}

/** The first characters, as many as these; no pair of surrogates is torn. */
export function clipped(text, most) {
  if (text.length <= most) return text;
  const end = (text.charCodeAt(most - 1) & 0xfc00) === 0xd800 ? most - 1 : most;
  return text.slice(0, end);
}

const encoder = new TextEncoder();
const decoder = new TextDecoder();

/** A copy of the first characters that does not keep the whole text in memory, as a slice would. */
export function copied(text, most) {
  return text.length <= most ? text : decoder.decode(encoder.encode(clipped(text, most)));
}

/** Long lines broken where nothing else breaks them. */
export function broken(text) {
  if (text.length <= LINE) return text;
  const parts = [];
  let from = 0;
  while (from < text.length) {
    const end = text.indexOf('\n', from);
    const part = clipped(text.slice(from, from + LINE), LINE);
    if (end >= 0 && end - from <= LINE) {
      parts.push(text.slice(from, end));
      from = end + 1;
    } else {
      parts.push(part);
      from += part.length;
    }
  }
  return parts.join('\n') + (text.endsWith('\n') ? '\n' : '');
}

/**
 * A text as it is, in steps: what is not shown costs nothing. `whole` fetches the rest where `text` is only its
 * beginning; `length` is that of the whole.
 * @param {string} text
 * @param {{length?: number, whole?: () => Promise<string>, first?: number}} [more]
 */
export function long(text, { length = text.length, whole: fetched, first = STEP } = {}) {
  const box = h('div', { class: 'long' });
  let at = 0;
  const add = (most) => {
    const part = clipped(text.slice(at), most);
    at += part.length;
    box.append(h('pre', { class: 'plain', dir: 'auto' }, broken(visible(part))));
  };
  const rest = button('', async () => {
    rest.disabled = true;
    try {
      if (at >= text.length && fetched) text = await fetched();
      add(STEP);
    } catch (error) {
      rest.after(h('span', { class: 'fault' }, ` ${error.message}`));
    }
    rest.disabled = false;
    told();
  }, { class: 'more' });
  const told = () => {
    const left = Math.max(length, text.length) - at;
    if (left > 0) box.append(rest);
    else rest.remove();
    rest.textContent = `Show more (${count(left)} characters left)`;
  };
  add(first);
  told();
  return box;
}

const MONTHS = ['Jan', 'Feb', 'Mar', 'Apr', 'May', 'Jun', 'Jul', 'Aug', 'Sep', 'Oct', 'Nov', 'Dec'];

/** A whole number with separators. (Intl would read its data first, which takes longer than all the rest of the page.) */
export function count(number) {
  return String(number).replace(/\B(?=(\d{3})+$)/g, ',');
}

function padded(number) {
  return String(number).padStart(2, '0');
}

/** A number of tokens, short from ten thousand on. */
export function tokens(number) {
  if (number < 10_000) return count(number);
  return number < 999_500 ? `${(number / 1_000).toFixed(number < 99_950 ? 1 : 0)}k` : `${(number / 1e6).toFixed(2)}M`;
}

/** USD, a decimal string as the API has it; null is not known. */
export function money(cost, partial = false) {
  if (cost === null || cost === undefined) return 'unknown';
  const usd = Number(cost);
  const text = usd === 0 ? '$0' : usd < 0.0001 ? '<$0.0001' : `$${usd.toFixed(usd < 1 ? 4 : 2)}`;
  return partial ? `≥ ${text}` : text;
}

/** Seconds. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return '—';
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 59.5) return `${Math.round(seconds)} s`;
  const full = Math.round(seconds);
  if (full < 3_600) return `${Math.floor(full / 60)} m ${padded(full % 60)} s`;
  return `${Math.floor(full / 3_600)} h ${padded(Math.floor((full % 3_600) / 60))} m`;
}

/** Bytes. */
export function bytes(size) {
  if (size < 1_000) return `${size} B`;
  return size < 1e6 ? `${(size / 1e3).toFixed(1)} kB` : `${(size / 1e6).toFixed(1)} MB`;
}

/** A moment: today its time, else its date too. */
export function moment(text, now = new Date()) {
  const at = new Date(text);
  if (Number.isNaN(at.getTime())) return '—';
  const time = `${padded(at.getHours())}:${padded(at.getMinutes())}`;
  if (at.toDateString() === now.toDateString()) return `${time}:${padded(at.getSeconds())}`;
  return `${at.getDate()} ${MONTHS[at.getMonth()]} ${at.getFullYear()}, ${time}`;
}

/** A status in words. */
export function words(status) {
  return String(status ?? '').replaceAll('_', ' ');
}
