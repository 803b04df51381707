// The list of experiments, and a new one out of JSON.

import * as api from '../api.mjs';
import { arrange, button, fill, h, say, show, sign, turn } from '../dom.mjs';
import { count, line, moment, money, words } from '../text.mjs';
import { LOOKS, shownStatus } from './experiment.mjs';

const PAGE = 30;
/** Milliseconds between two looks: while one of them runs, and else. */
const LOOK = [4_000, 20_000];
const EXAMPLE = `{
  "experiment": {"name": "capitals", "tasks": [{"id": "1", "input": "Capital of France?", "target": "Paris"}]},
  "grader": {"use": "contains"},
  "arms": {"fast": {"mode": "react", "routing": "fixed:fast"}, "smart": {"mode": "react", "routing": "fixed:smart"}}
}`;

export class ExperimentsPage {
  /** @param {HTMLElement} node */
  constructor(node) {
    this.abort = new AbortController();
    this.pages = [null];
    this.next = null;
    this.rows = new Map();
    this.list = h('ol', { class: 'list experiments', 'aria-label': 'Experiments' });
    this.note = h('p', { class: 'quiet', role: 'status' });
    this.newer = button('Newer', () => this.turn(-1), { hidden: true });
    this.older = button('Older', () => this.turn(1), { hidden: true });
    fill(node, h('div', { class: 'column' }, h('h1', {}, 'Experiments'), this.note, this.list,
      h('div', { class: 'pager' }, this.newer, this.older), form((made) => {
        location.hash = `#/experiments/${encodeURIComponent(made.id)}`;
      })));
    document.title = 'Experiments';
    this.seen = () => !document.hidden && this.look();
    document.addEventListener('visibilitychange', this.seen);
  }

  open() {
    return this.look();
  }

  close() {
    this.abort.abort();
    clearTimeout(this.timer);
    document.removeEventListener('visibilitychange', this.seen);
  }

  turn(by) {
    if (by > 0 && this.next) this.pages.push(this.next);
    else if (by < 0 && this.pages.length > 1) this.pages.pop();
    return this.look();
  }

  async look() {
    clearTimeout(this.timer);
    let some = false;
    try {
      const found = await api.experiments(PAGE, this.pages.at(-1), this.abort.signal);
      if (this.abort.signal.aborted) return;
      this.next = found.next;
      say(this.note, found.data.length ? '' : 'No experiments yet.');
      show(this.note, !found.data.length);
      const before = this.rows;
      this.rows = new Map(found.data.map((one) => [one.id, before.get(one.id) ?? this.row(one)]));
      for (const one of found.data) this.update(this.rows.get(one.id), one);
      arrange(this.list, [...this.rows.values()].map((row) => row.node));
      show(this.newer, this.pages.length > 1);
      show(this.older, found.next);
      some = found.data.some((one) => one.status !== 'ended' || (one.conclusion === null && !one.report_problem));
    } catch (problem) {
      if (this.abort.signal.aborted) return;
      say(this.note, problem.message);
      show(this.note, true);
    }
    clearTimeout(this.timer);
    this.timer = setTimeout(() => (document.hidden ? null : this.look()), LOOK[some ? 0 : 1]);
  }

  row(one) {
    const row = { mark: sign('queued'), name: h('span', { class: 'goal', dir: 'auto' }), facts: h('span', { class: 'facts' }), said: h('span', { class: 'said-short' }) };
    row.node = h('li', {}, h('a', { href: `#/experiments/${encodeURIComponent(one.id)}` }, row.mark, row.name, row.facts, row.said));
    return row;
  }

  update(row, one) {
    const status = shownStatus(one);
    turn(row.mark, LOOKS[status]);
    say(row.name, line(one.name, 140));
    say(row.facts, [words(status), `${count(one.ended)} of ${count(one.cells)} cells`, money(one.usage.cost_usd, one.usage.partial), moment(one.created_at)].join(' · '));
    say(row.said, one.conclusion ? line(one.conclusion, 300) : '');
    show(row.said, one.conclusion);
  }
}

function form(created) {
  const text = h('textarea', { id: 'experiment', rows: 10, class: 'code', spellcheck: 'false', placeholder: EXAMPLE });
  const fault = h('p', { class: 'fault', role: 'alert', hidden: true });
  const send = button('Start', () => {}, { type: 'submit', class: 'first' });
  let key = fresh();
  text.addEventListener('input', () => { key = fresh(); });
  const inside = h('form', { on: { submit: async (event) => {
    event.preventDefault();
    send.disabled = true;
    show(fault, false);
    try {
      created(await api.createExperiment(parsed(text.value), key));
    } catch (problem) {
      say(fault, problem.message);
      show(fault, true);
    }
    send.disabled = false;
  } } }, h('label', { for: 'experiment' }, 'The keys of an experiment’s file, as JSON; tasks and recorded answers stand in it'), text, fault,
  h('div', { class: 'actions' }, send));
  return h('details', { class: 'new-experiment' }, h('summary', {}, 'New experiment'), inside);
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`This is no JSON: ${error.message}`);
  }
}

/** A key that nobody else has. */
function fresh() {
  return crypto.getRandomValues(new Uint32Array(4)).join('-');
}
