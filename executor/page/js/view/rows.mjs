// The rows of an agent's trail: tool calls as cards that open, thoughts, dividers. A card's inside is made when it is
// opened; rows that the trail has let go are read again on demand.

import * as api from '../api.mjs';
import { button, h, say, set, show, sign, turn } from '../dom.mjs';
import { eventAt, eventsFrom } from '../stream.mjs';
import { bytes, count, duration, line, long, moment, words } from '../text.mjs';
import { Trail, wholeText } from '../trail.mjs';

/** A text that an event has whole, of which the beginning is known. */
export function excerptNode(jobId, found, first) {
  const whole = async () => wholeText((await eventAt(jobId, found.seq)).data, found.field);
  return long(found.text, { length: found.length, whole, first });
}

export class Rows {
  /** @param {HTMLElement} node @param {string} jobId */
  constructor(node, jobId) {
    this.node = node;
    this.jobId = jobId;
    /** @type {Map<number, {node: HTMLElement, version: number, update: () => void}>} */
    this.shown = new Map();
    this.list = h('ol', { class: 'rows' });
    this.before = button('', () => this.earlier(), { class: 'more' });
    this.old = h('ol', { class: 'rows' });
    node.replaceChildren(this.before, this.old, this.list);
    this.first = 0;
  }

  /** Shows a trail as it is now. @param {Trail} trail */
  show(trail, stepId) {
    this.trail = trail;
    this.stepId = stepId;
    const there = new Set(trail.rows.map((row) => row.key));
    for (const [key, { node }] of this.shown) {
      if (there.has(key)) continue;
      node.remove();
      this.shown.delete(key);
    }
    for (const row of trail.rows) {
      const known = this.shown.get(row.key);
      if (!known) {
        const made = rowNode(row, this.jobId);
        this.shown.set(row.key, made);
        this.list.append(made.node);
      } else if (known.version !== row.version) {
        known.version = row.version;
        known.update();
      }
    }
    const hidden = trail.dropped - this.old.children.length;
    say(this.before, `Show earlier entries (${count(Math.max(0, hidden))})`);
    show(this.before, hidden > 0 && this.first !== trail.firstSeq);
  }

  /** Reads what stands before the first row again. */
  async earlier() {
    this.before.disabled = true;
    const end = this.first || (this.trail.rows[0]?.seq ?? Infinity);
    const past = new Trail();
    try {
      for await (const { id, channel, data } of eventsFrom(this.jobId, this.trail.firstSeq - 1)) {
        if (id >= end) break;
        if (channel === 'step' && data.step_id === this.stepId) past.step(data);
      }
      past.close();
      this.old.prepend(...past.rows.map((row) => rowNode(row, this.jobId).node));
      this.first = past.dropped ? past.rows[0].seq : this.trail.firstSeq;
    } catch (error) {
      this.before.after(h('p', { class: 'fault' }, error.message));
    }
    this.before.disabled = false;
    this.show(this.trail, this.stepId);
  }
}

const KINDS = {
  call, thought,
  compact: (row) => divider(`Context compacted: ${row.before} → ${row.after} messages`, 'compacted'),
  round: (row) => divider(`Round ${row.round}`),
  attempt: (row) => divider(`Attempt ${row.attempt}`),
  choosing: (row) => plainRow(`chooses among ${count(row.tools)} tools`),
  writing: () => plainRow('writes its result'),
  said: (row, jobId) => h('li', { class: 'said' }, h('b', {}, 'You'), excerptNode(jobId, row.content ?? { text: '', length: 0 }, 1_000)),
  approval,
};

/** A row's node, and what brings it up to date. */
function rowNode(row, jobId) {
  const made = KINDS[row.kind](row, jobId);
  return made instanceof Node ? { node: made, version: row.version, update: () => {} } : { ...made, version: row.version };
}

function divider(text, kind) {
  return h('li', { class: `divider ${kind ?? ''}` }, h('span', {}, text));
}

function plainRow(text) {
  return h('li', { class: 'plainrow' }, text);
}

function approval(row, jobId) {
  const text = row.status === 'waiting' ? `${line(row.name, 80)} waits for a decision`
    : row.status === 'uncertain' ? `${line(row.name, 80)}: did it take effect?`
      : `${line(row.name, 80)}: ${words(row.status)}${row.by ? ` by ${line(row.by, 60)}` : ''}`;
  return h('li', { class: 'plainrow approval', 'data-status': row.status }, text,
    row.reason ? excerptNode(jobId, row.reason, 500) : null);
}

function thought(row, jobId) {
  const head = h('summary');
  const box = h('details', { class: 'thought', on: { toggle: () => box.open && fillIn() } }, head);
  const node = h('li', {}, box);
  let filled = null;
  const fillIn = () => {
    if (!row.text || filled === row.text) return;
    filled = row.text;
    box.replaceChildren(head, excerptNode(jobId, row.text));
  };
  const update = () => {
    say(head, row.open ? `turn ${row.iteration} · thinks …` : `turn ${row.iteration} · ${duration(row.elapsed)}`);
    set(node, 'class', row.text ? 'thinking told' : 'thinking');
    set(head, 'tabindex', row.text ? null : '-1');
    if (box.open) fillIn();
  };
  update();
  return { node, update };
}

function call(row, jobId) {
  const mark = sign('running');
  const state = h('span', { class: 'unseen' });
  const time = h('span', { class: 'time' });
  const args = h('span', { class: 'args', dir: 'auto' }, row.args ? line(row.args.text.replace(/^\{\s*|\s*\}$/g, ''), 160) : '');
  const head = h('summary', {}, mark, h('b', { class: 'tool' }, line(row.name, 80)), state, args, time);
  const box = h('details', { class: 'card-call', on: { toggle: () => box.open && inside() } }, head);
  let drawn = -1;
  const inside = () => {
    if (drawn === row.version) return;
    drawn = row.version;
    box.replaceChildren(head, ...callParts(row, jobId));
  };
  const update = () => {
    const status = row.open ? 'running' : row.given ? 'cancelled' : row.error ? 'failed' : 'completed';
    turn(mark, status);
    say(state, ` ${status} `);
    say(time, row.elapsed === undefined ? '' : duration(row.elapsed));
    set(box, 'data-status', status);
    if (box.open) inside();
  };
  update();
  return { node: h('li', {}, box), update };
}

function callParts(row, jobId) {
  const part = (name, node) => h('div', { class: 'part' }, h('h4', {}, name), node);
  const parts = [];
  if (row.args) parts.push(part('Arguments', excerptNode(jobId, row.args)));
  if (row.result) parts.push(part(row.error ? 'Error' : 'Result', excerptNode(jobId, row.result)));
  else if (!row.open) parts.push(h('p', { class: 'quiet' }, row.given ? 'No result was told.' : 'The result is empty.'));
  if (row.artifact?.name) {
    parts.push(h('p', {}, h('a', { href: api.artifactPath(jobId, String(row.artifact.name)), download: '' },
      line(row.artifact.name, 100)), row.artifact.size ? ` ${bytes(row.artifact.size)}` : ''));
  }
  parts.push(h('p', { class: 'quiet' }, `turn ${row.iteration ?? '—'}, ${moment(new Date(row.ts * 1_000))}`));
  return parts;
}
