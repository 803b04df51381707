// Markdown's blocks, as a list of plain objects: headings, lists, quotes, code, tables, paragraphs. A text is read once,
// line by line; nesting is bounded.

/** Levels of quotes and lists. */
const DEEP = 12;
const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?=\s|$)/;
const RULE = /^ {0,3}(?:(?:\*\s*){3,}|(?:-\s*){3,}|(?:_\s*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( {1,4}|$)/;
const SIDE = /^:?-+:?$/;

/**
 * @typedef {object} Block
 * @property {'text'|'heading'|'rule'|'code'|'quote'|'list'|'table'} kind
 * @property {number} start Index of its first character in the text.
 * @property {string} [text]
 * @property {number} [level]
 * @property {Block[]} [blocks]
 * @property {Block[][]} [items]
 * @property {boolean} [ordered]
 * @property {number} [first]
 * @property {string} [language]
 * @property {string[]} [lines]
 */

/** @param {string} text @returns {Block[]} */
export function blocks(text, deep = 0) {
  const lines = text.split('\n');
  const reading = { lines, at: 0, deep };
  const found = [];
  let start = 0;
  while (reading.at < lines.length) {
    const from = reading.at;
    const block = next(reading);
    if (block) found.push({ ...block, start });
    for (let at = from; at < reading.at; at += 1) start += lines[at].length + 1;
  }
  return found;
}

function next(reading) {
  const line = reading.lines[reading.at];
  if (!line.trim()) {
    reading.at += 1;
    return null;
  }
  const fence = FENCE.exec(line);
  if (fence) return fenced(reading, fence);
  if (/^(?: {4}|\t)/.test(line)) return indented(reading);
  const heading = HEADING.exec(line);
  if (heading) {
    reading.at += 1;
    return { kind: 'heading', level: heading[1].length, text: titled(line.slice(heading[0].length)) };
  }
  if (RULE.test(line)) {
    reading.at += 1;
    return { kind: 'rule' };
  }
  if (reading.deep < DEEP) {
    if (QUOTE.test(line)) return quote(reading);
    if (ITEM.test(line)) return list(reading);
  }
  if (isTable(reading)) return table(reading);
  return paragraph(reading);
}

/** A heading's text, without the signs that may close it. */
function titled(text) {
  const words = text.trim();
  let end = words.length;
  while (end > 0 && words[end - 1] === '#') end -= 1;
  return end === 0 ? '' : /\s/.test(words[end - 1]) ? words.slice(0, end).trimEnd() : words;
}

function fenced(reading, [, fence, language]) {
  const end = new RegExp(`^ {0,3}${fence[0]}{${fence.length},}\\s*$`);
  const code = [];
  for (reading.at += 1; reading.at < reading.lines.length; reading.at += 1) {
    if (end.test(reading.lines[reading.at])) {
      reading.at += 1;
      break;
    }
    code.push(reading.lines[reading.at]);
  }
  return { kind: 'code', text: code.join('\n'), language: language.trim().slice(0, 40) };
}

function indented(reading) {
  const code = [];
  while (reading.at < reading.lines.length && /^(?: {4}|\t)|^\s*$/.test(reading.lines[reading.at])) {
    code.push(reading.lines[reading.at].replace(/^(?: {4}|\t)/, ''));
    reading.at += 1;
  }
  return { kind: 'code', text: code.join('\n').trimEnd(), language: '' };
}

function quote(reading) {
  const inside = [];
  while (reading.at < reading.lines.length && QUOTE.test(reading.lines[reading.at])) {
    inside.push(reading.lines[reading.at].replace(QUOTE, ''));
    reading.at += 1;
  }
  return { kind: 'quote', blocks: blocks(inside.join('\n'), reading.deep + 1) };
}

function list(reading) {
  const [, , mark] = ITEM.exec(reading.lines[reading.at]);
  const ordered = /\d/.test(mark);
  const items = [];
  while (reading.at < reading.lines.length) {
    const found = ITEM.exec(reading.lines[reading.at]);
    if (!found || /\d/.test(found[2]) !== ordered || RULE.test(reading.lines[reading.at])) break;
    items.push(blocks(item(reading, found).join('\n'), reading.deep + 1));
  }
  return { kind: 'list', ordered, first: ordered ? Number.parseInt(mark, 10) : 1, items };
}

/** The lines of one item, without what indents them. */
function item(reading, found) {
  const width = found[0].length;
  const inside = [reading.lines[reading.at].slice(width)];
  let blank = false;
  for (reading.at += 1; reading.at < reading.lines.length; reading.at += 1) {
    const line = reading.lines[reading.at];
    const indent = line.search(/\S/);
    if (indent < 0) {
      blank = true;
      inside.push('');
      continue;
    }
    const deeper = indent >= Math.min(width, 2) && (indent >= width || !ITEM.test(line) || indent >= 2);
    if (!deeper && (blank || ITEM.test(line) || starts(line))) break;
    inside.push(line.slice(Math.min(indent, width)));
    blank = false;
  }
  return inside;
}

function isTable({ lines, at }) {
  const sides = lines[at + 1]?.trim();
  if (!sides || !lines[at].includes('|') || !sides.includes('-') || sides.length > 10_000) return false;
  return sides.replace(/^\||\|$/g, '').split('|').every((side) => SIDE.test(side.trim()));
}

function table(reading) {
  const rows = [];
  for (; reading.at < reading.lines.length; reading.at += 1) {
    const line = reading.lines[reading.at];
    if (!line.trim() || (rows.length > 1 && !line.includes('|'))) break;
    rows.push(line);
  }
  return { kind: 'table', lines: rows };
}

/** Whether a line begins another block than a paragraph, so that a paragraph ends before it. */
function starts(line) {
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);
}

function paragraph(reading) {
  const text = [reading.lines[reading.at]];
  for (reading.at += 1; reading.at < reading.lines.length; reading.at += 1) {
    const line = reading.lines[reading.at];
    if (!line.trim() || starts(line) || isTable(reading)) break;
    text.push(line.replace(/^ +/, ''));
  }
  return { kind: 'text', text: text.join('\n') };
}
