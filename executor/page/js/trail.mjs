// What an agent did, as rows: thoughts, tool calls, compactions, words of the user. Bounded: beginnings of long texts
// are kept, and the newest rows; the rest can be read again from the job's events by its seq.

import { copied } from './text.mjs';

/** Characters of a text that a row keeps. */
const KEPT = 2_000;
/** Rows of one agent that are kept, and of all agents of a job. */
const ROWS = 100;
export const ALL_ROWS = 1_000;
let keys = 0;

/**
 * A text's beginning, its length, and the seq of the event that has it whole under `field`.
 * @typedef {{text: string, length: number, seq: number, field: string}} Excerpt
 */

/** @returns {Excerpt|null} */
export function excerpt(value, seq, field, most = KEPT) {
  if (value === null || value === undefined || value === '') return null;
  const text = typeof value === 'string' ? value : JSON.stringify(value, null, 2);
  return { text: copied(text, most), length: text.length, seq, field };
}

/** A field of an event as the text that an excerpt is the beginning of. */
export function wholeText(data, field) {
  return typeof data[field] === 'string' ? data[field] : JSON.stringify(data[field], null, 2);
}

export class Trail {
  /** @param {{rows: number}} total how many rows there are in all trails of the job */
  constructor(total = { rows: 0 }) {
    this.total = total;
    /** @type {any[]} */
    this.rows = [];
    /** Rows that were let go, and the seq at which the agent's first event stands. */
    this.dropped = 0;
    this.firstSeq = 0;
    this.calls = 0;
    this.turns = 0;
  }

  /** Adds a row. `version` is raised whenever it changes. */
  add(kind, seq, ts, fields = {}) {
    this.firstSeq ||= seq;
    const row = { key: (keys += 1), version: 0, kind, seq, ts, ...fields };
    this.rows.push(row);
    this.total.rows += 1;
    if (this.rows.length > ROWS) this.drop(this.rows.length - ROWS);
    return row;
  }

  /** Lets the oldest rows go. */
  drop(many) {
    this.rows.splice(0, many);
    this.dropped += many;
    this.total.rows -= many;
  }

  /** The data of a `step` event. */
  step(data) {
    const { seq, ts, type, status, iteration } = data;
    if (type === 'thinking' && status === 'start') {
      this.turns += 1;
      this.add('thought', seq, ts, { iteration, open: true, text: null, elapsed: null });
    } else if (type === 'thinking') {
      const row = this.find((one) => one.kind === 'thought' && one.iteration === iteration && one.open);
      if (row) Object.assign(row, { open: false, text: excerpt(data.reasoning, seq, 'reasoning'), elapsed: ts - row.ts });
    } else if (type === 'iteration' && status === 'start') {
      this.calls += 1;
      const args = excerpt(data.tool_args, seq, 'tool_args');
      this.add('call', seq, ts, { iteration, name: copied(String(data.tool_name), 200), args, open: true });
    } else if (type === 'iteration') {
      this.ended(data);
    } else if (type === 'answer') {
      this.add('writing', seq, ts);
    }
  }

  ended(data) {
    const name = copied(String(data.tool_name), 200);
    const row = this.find((one) => one.kind === 'call' && one.open && one.iteration === data.iteration && one.name === name)
      ?? this.add('call', data.seq, data.ts, { iteration: data.iteration, name, args: null });
    Object.assign(row, {
      open: false,
      result: excerpt(data.observation, data.seq, 'observation'),
      error: data.error !== null && data.error !== undefined,
      elapsed: data.iter_elapsed,
      artifact: data.artifact ?? null,
    });
  }

  /** The oldest row of those, its version raised. */
  find(fits) {
    const row = this.rows.find(fits);
    if (row) row.version += 1;
    return row;
  }

  /** What an agent had open when it ended, or when a new attempt began, is open no more. */
  close() {
    for (const row of this.rows) {
      if (!row.open) continue;
      row.open = false;
      row.given = row.kind === 'call';
      row.version += 1;
    }
  }
}
