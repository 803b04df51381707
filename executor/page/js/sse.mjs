// Server-sent events out of pieces of text (WHATWG HTML, 9.2.6), as the service writes them.

/**
 * @typedef {object} Sent
 * @property {number|null} id The event's seq; null: a live piece, or the server's last word.
 * @property {string} channel
 * @property {any} data
 */

/** Takes text as it comes, gives the events that are whole. */
export class Parser {
  constructor() {
    /** Milliseconds after which to come back, as the server said last. @type {number|null} */
    this.retry = null;
    /** @type {string[]} pieces of the event that is not whole yet */
    this.parts = [];
    this.last = '';
  }

  /** @param {string} text @returns {Generator<Sent>} */
  *feed(text) {
    let from = 0;
    if (this.last === '\n' && text.startsWith('\n')) {
      this.parts.push('\n');
      yield* this.block();
      from = 1;
    }
    for (let end = text.indexOf('\n\n', from); end >= 0; end = text.indexOf('\n\n', from)) {
      this.parts.push(text.slice(from, end));
      yield* this.block();
      from = end + 2;
    }
    if (from < text.length) this.parts.push(text.slice(from));
    this.last = this.parts.length ? text.at(-1) ?? this.last : '';
  }

  *block() {
    const block = this.parts.length === 1 ? this.parts[0] : this.parts.join('');
    this.parts = [];
    this.last = '';
    let id = null;
    let channel = 'message';
    const data = [];
    for (const line of block.split('\n')) {
      const colon = line.indexOf(':');
      if (colon <= 0) continue; // a comment, or nothing
      const name = line.slice(0, colon);
      const value = line.slice(line[colon + 1] === ' ' ? colon + 2 : colon + 1);
      if (name === 'data') data.push(value);
      else if (name === 'event') channel = value;
      else if (name === 'id') id = Number(value);
      else if (name === 'retry') this.retry = Number(value);
    }
    if (data.length) yield { id, channel, data: JSON.parse(data.join('\n')) };
  }
}
