// The list of jobs: filtered by status and metadata at the server, by words of the goal here; paged by keys.

import * as api from '../api.mjs';
import { arrange, button, fill, h, say, set, show, sign, turn } from '../dom.mjs';
import { duration, line, moment, money, words } from '../text.mjs';
import { isEnded } from '../fold.mjs';

const PAGE = 30;
/** Jobs that a search for words looks through at most: the API has no such search. */
const SEARCHED = 1_000;
/** Milliseconds between two looks at the list: while a job of it runs, and else. */
const LOOKS = [5_000, 20_000];
const STATUSES = ['queued', 'running', 'needs_decision', 'completed', 'partial', 'failed', 'cancelled', 'budget_exceeded'];

export class JobList {
  /** @param {HTMLElement} node */
  constructor(node) {
    this.node = node;
    this.jobs = [];
    /** Ids after which the pages before this one began. @type {(string|null)[]} */
    this.pages = [null];
    this.next = null;
    this.current = null;
    this.rows = new Map();
    this.abort = null;
    this.stopped = true;
    document.addEventListener('visibilitychange', () => !document.hidden && this.refresh());
    this.build();
  }

  build() {
    this.search = h('input', {
      type: 'search', id: 'search', placeholder: 'words or key=value', autocomplete: 'off',
      'aria-label': 'Filter jobs by words, or by metadata as key=value', 'aria-keyshortcuts': '/',
      on: { input: () => this.later(), keydown: (event) => event.key === 'Escape' && this.clear() },
    });
    this.status = h('select', { 'aria-label': 'Status', on: { change: () => this.restart() } },
      h('option', { value: '' }, 'all'), ...STATUSES.map((one) => h('option', { value: one }, words(one))));
    this.list = h('ol', { class: 'list' });
    this.note = h('p', { class: 'note', role: 'status' });
    this.newer = button('Newer', () => this.turn(-1));
    this.older = button('Older', () => this.turn(1));
    fill(this.node,
      h('div', { class: 'filter' }, this.search, this.status),
      this.note, this.list, h('div', { class: 'pager' }, this.newer, this.older));
  }

  start() {
    this.stopped = false;
    this.refresh();
  }

  stop() {
    this.stopped = true;
    clearTimeout(this.timer);
    this.abort?.abort();
    this.draw([]);
  }

  later() {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.restart(), 200);
  }

  clear() {
    this.search.value = '';
    this.restart();
  }

  restart() {
    this.pages = [null];
    this.refresh();
  }

  turn(by) {
    if (by > 0 && this.next) this.pages.push(this.next);
    else if (by < 0 && this.pages.length > 1) this.pages.pop();
    this.refresh().then(() => this.list.scrollTo?.(0, 0));
  }

  /** The job that is open. */
  select(id) {
    this.current = id;
    for (const [name, row] of this.rows) set(row.link, 'aria-current', name === id ? 'page' : null);
  }

  /** Asks for the page again; what came of an earlier question is not shown any more. */
  async refresh() {
    if (this.stopped) return;
    clearTimeout(this.timer);
    this.abort?.abort();
    const abort = this.abort = new AbortController();
    try {
      const words = this.search.value.trim().toLowerCase();
      const pair = /^([^=\s]{1,64})=(.*)$/.exec(words ? this.search.value.trim() : '');
      const query = [['limit', words && !pair ? 100 : PAGE]];
      if (this.status.value) query.push(['status', this.status.value]);
      if (pair) query.push([`metadata.${pair[1]}`, pair[2]]);
      await (words && !pair ? this.find(words, query, abort.signal) : this.page(query, abort.signal));
    } catch (error) {
      if (!abort.signal.aborted) this.tell(error.message);
    }
    if (abort.signal.aborted) return;
    const wait = LOOKS[this.jobs.some((job) => !isEnded(job.status)) ? 0 : 1];
    this.timer = setTimeout(() => (document.hidden ? null : this.refresh()), wait);
  }

  async page(query, signal) {
    const after = this.pages.at(-1);
    const found = await api.list(after ? [...query, ['after', after]] : query, signal);
    this.next = found.next;
    this.draw(found.data);
    this.tell(found.data.length ? '' : this.status.value || this.search.value ? 'No job is like that.' : 'No jobs yet.');
    show(this.newer, this.pages.length > 1);
    show(this.older, found.next);
  }

  async find(words, query, signal) {
    const found = [];
    let looked = 0;
    let after = null;
    do {
      const page = await api.list(after ? [...query, ['after', after]] : query, signal);
      found.push(...page.data.filter((job) => job.goal.toLowerCase().includes(words)));
      looked += page.data.length;
      after = page.next;
      this.draw(found.slice(0, PAGE * 3));
      this.tell(`${found.length} of the newest ${looked} jobs${after && looked < SEARCHED ? ' …' : ''}`);
    } while (after && looked < SEARCHED && found.length < PAGE * 3);
    show(this.newer, false);
    show(this.older, false);
  }

  tell(text) {
    say(this.note, text);
    show(this.note, text);
  }

  draw(jobs) {
    this.jobs = jobs;
    const before = this.rows;
    this.rows = new Map(jobs.map((job) => [job.id, before.get(job.id) ?? this.row(job)]));
    for (const job of jobs) this.update(this.rows.get(job.id), job);
    arrange(this.list, [...this.rows.values()].map((row) => row.node));
    this.select(this.current);
  }

  row(job) {
    const row = { mark: sign(job.status), goal: h('span', { class: 'goal', dir: 'auto' }), facts: h('span', { class: 'facts' }) };
    row.link = h('a', { href: `#/jobs/${encodeURIComponent(job.id)}` }, row.mark, row.goal, row.facts);
    row.node = h('li', {}, row.link);
    return row;
  }

  update(row, job) {
    turn(row.mark, job.status);
    say(row.goal, line(job.goal, 140));
    const facts = [words(job.status), moment(job.created_at)];
    if (isEnded(job.status)) {
      const cost = job.usage?.cost_usd ?? null;
      facts.push(duration(job.elapsed), cost === null ? 'cost unknown' : money(cost, job.usage.partial));
    }
    if (job.parent) facts.push('fork');
    if (job.batch) facts.push('batch');
    say(row.facts, facts.join(' · '));
  }
}
