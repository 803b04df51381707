// The text of a job's answer, out of stored deltas and the live pieces that run ahead of them, in whatever order they
// come. `part` counts the answers that were void before. Offsets count Unicode characters, JavaScript's strings UTF-16
// units: both lengths are kept. What is stored is right; a live piece that says otherwise came from a worker that died.

/** Live pieces that wait for what stands before them; more are dropped, their text comes stored. */
const EARLY = 1_000;

export class Answer {
  constructor() {
    this.part = 0;
    this.text = '';
    /** Characters of `text`. */
    this.size = 0;
    /** Raised whenever text that was there is there no more. */
    this.version = 0;
    this.begun = false;
    this.done = false;
    this.storedPart = 0;
    this.stored = 0;
    /** @type {Map<number, string>} */
    this.early = new Map();
  }

  /** Takes the data of an `answer` event over; `live`: it has no id. */
  take(data, live) {
    if (data.status === 'delta') {
      this.begun = true;
      this.done = false;
      const part = data.part ?? this.storedPart;
      if (live) this.live(part, data.offset, data.content);
      else this.keep(part, data.offset ?? this.stored, data.content);
    } else if (data.status === 'done') {
      this.done = true;
    } else {
      this.begun = data.status === 'start';
      this.done = false;
      if (this.stored) {
        this.storedPart += 1;
        this.stored = 0;
        this.turnTo(this.storedPart);
      }
    }
  }

  live(part, offset, content) {
    this.turnTo(part);
    if (part !== this.part || offset + sizeOf(content) <= this.size || this.early.size >= EARLY) return;
    this.early.set(offset, content);
    this.join();
  }

  keep(part, offset, content) {
    this.turnTo(part);
    this.storedPart = part;
    this.stored = offset + sizeOf(content);
    if (part !== this.part) return;
    if (offset > this.size) { // never with a stream read from its beginning; what is there stays readable
      this.early.set(offset, content);
      return;
    }
    const have = this.size - offset;
    const tail = have ? this.text.slice(before(this.text, have)) : '';
    const shared = have ? content.slice(0, after(content, have)) : '';
    if (tail.slice(0, shared.length) !== shared) {
      this.text = this.text.slice(0, this.text.length - tail.length);
      this.size = offset;
      this.version += 1;
      this.early.clear();
    }
    this.add(content, this.size - offset);
    this.join();
  }

  join() {
    if (!this.early.size) return;
    for (const offset of [...this.early.keys()].sort((one, other) => one - other)) {
      if (offset > this.size) break;
      this.add(this.early.get(offset), this.size - offset);
      this.early.delete(offset);
    }
  }

  /** Adds a text without its first `known` characters. */
  add(content, known) {
    const rest = known > 0 ? content.slice(after(content, known)) : content;
    this.text += rest;
    this.size += sizeOf(rest);
  }

  turnTo(part) {
    if (part <= this.part) return;
    this.part = part;
    this.text = '';
    this.size = 0;
    this.version += 1;
    this.early.clear();
  }
}

/** Unicode characters of a text, as Python counts them. */
export function sizeOf(text) {
  let size = text.length;
  for (let at = 0; at < text.length - 1; at += 1) {
    if ((text.charCodeAt(at) & 0xfc00) === 0xd800 && (text.charCodeAt(at + 1) & 0xfc00) === 0xdc00) {
      size -= 1;
      at += 1;
    }
  }
  return size;
}

/** The index after so many characters, the text's end at most. */
function after(text, characters) {
  let at = 0;
  for (; characters > 0 && at < text.length; characters -= 1) at += text.codePointAt(at) > 0xffff ? 2 : 1;
  return at;
}

/** The index so many characters before the text's end. */
function before(text, characters) {
  let at = text.length;
  for (; characters > 0 && at > 0; characters -= 1) {
    const pair = at > 1 && (text.charCodeAt(at - 1) & 0xfc00) === 0xdc00 && (text.charCodeAt(at - 2) & 0xfc00) === 0xd800;
    at -= pair ? 2 : 1;
  }
  return at;
}
