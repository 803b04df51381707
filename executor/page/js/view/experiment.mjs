// An experiment's page: how far it is, its report, its cells and their jobs. Asked for gently while it runs.

import * as api from '../api.mjs';
import { arrange, button, fill, h, say, set, show, sign, turn } from '../dom.mjs';
import { count, duration, line, moment, money, words } from '../text.mjs';
import { Report } from './report.mjs';

/** Milliseconds between two looks at the experiment, and at least between two at its report. */
const LOOK = 2_000;
const REPORT = 5_000;
/** Cells that are fetched at once. */
const PAGE = 100;
const FORMATS = [['html', 'HTML'], ['markdown', 'Markdown'], ['csv', 'CSV, all cells'], ['json', 'JSON']];

export class ExperimentPage {
  /** @param {HTMLElement} node @param {string} id @param {{announce: (text: string) => void}} around */
  constructor(node, id, around) {
    this.node = node;
    this.id = id;
    this.around = around;
    this.abort = new AbortController();
    this.reported = { ended: -1, at: -Infinity, took: 0 };
    this.build(node);
    this.seen = () => !document.hidden && this.look();
    document.addEventListener('visibilitychange', this.seen);
  }

  build(node) {
    this.title = h('h1', { dir: 'auto' });
    this.mark = sign('queued');
    this.status = h('b', { class: 'status' });
    this.facts = h('span', { class: 'facts' });
    this.links = h('p', { class: 'links' });
    this.cancel = button('Cancel', () => this.end(), { class: 'danger', hidden: true });
    this.bar = h('progress', { 'aria-label': 'Cells that have ended', max: 1, value: 0 });
    this.counts = h('p', { class: 'quiet' });
    this.note = h('p', { class: 'connection', role: 'status', hidden: true });
    this.head = h('header', { class: 'jobhead' }, this.title,
      h('div', { class: 'state' }, this.mark, this.status, this.facts, h('span', { class: 'actions' }, this.cancel)),
      this.bar, this.counts, this.links);
    this.waits = h('p', { class: 'quiet', hidden: true });
    this.place = h('div');
    this.cells = new Cells(this.id, this.abort.signal);
    fill(node, h('div', { class: 'column experiment' }, h('p', {}, h('a', { href: '#/experiments' }, 'All experiments')),
      this.head, this.note, this.waits, this.place, this.cells.node));
    this.report = new Report(this.place);
  }

  open() {
    return this.look();
  }

  close() {
    this.abort.abort();
    clearTimeout(this.timer);
    document.removeEventListener('visibilitychange', this.seen);
    this.report.close();
  }

  async look() {
    clearTimeout(this.timer);
    try {
      const found = await api.experiment(this.id, this.abort.signal);
      if (this.abort.signal.aborted) return;
      this.tell(null);
      this.update(found);
      await this.lookAtReport(found);
    } catch (problem) {
      if (this.abort.signal.aborted) return;
      if (problem.status === 404) {
        fill(this.node, h('p', { class: 'card', role: 'alert' }, 'There is no such experiment.'));
        this.close();
        return;
      }
      if (problem.status !== 401) this.tell(problem.message);
    }
    clearTimeout(this.timer);
    if (!this.abort.signal.aborted && !this.over) this.timer = setTimeout(() => (document.hidden ? null : this.look()), LOOK);
  }

  /** The report anew, where cells have ended since; less often where it takes the server long. */
  async lookAtReport(found) {
    const over = found.status === 'ended';
    const since = performance.now() - this.reported.at;
    if (found.report_problem) {
      this.wait(found.report_problem.detail ?? 'There is no report.');
      this.over = over;
      return;
    }
    if (this.reported.ended === found.ended && this.reported.status === found.status) {
      this.over = over;
      return;
    }
    if (!over && since < Math.max(REPORT, 5 * this.reported.took)) return;
    const began = performance.now();
    try {
      const report = await api.experimentReport(this.id, this.abort.signal);
      if (this.abort.signal.aborted) return;
      this.wait(null);
      this.report.show(report, over);
      this.over = over;
    } catch (problem) {
      if (this.abort.signal.aborted || problem.status === 401) return;
      this.wait(problem.code === 'nothing_ended' && !over ? 'The report begins with the first cell that ends.' : problem.message);
      if ([409, 500, 501].includes(problem.status)) this.over = over;
    }
    this.reported = { ended: found.ended, status: found.status, at: performance.now(), took: performance.now() - began };
  }

  wait(text) {
    say(this.waits, text ?? '');
    show(this.waits, text);
  }

  tell(text) {
    say(this.note, text ?? '');
    show(this.note, text);
  }

  update(found) {
    const { counts } = found;
    const status = shownStatus(found);
    say(this.title, line(found.name, 200));
    turn(this.mark, LOOKS[status]);
    say(this.status, words(status));
    set(this.head, 'data-status', LOOKS[status]);
    say(this.facts, [`${count(found.ended)} of ${count(found.cells)} cells`, `cost ${money(found.usage.cost_usd, found.usage.partial)}`,
      found.budget ? `budget ${line(found.budget, 60)}` : null, moment(found.created_at)].filter(Boolean).join(' · '));
    set(this.bar, 'max', Math.max(1, found.cells));
    set(this.bar, 'value', found.ended);
    const parts = [['running', counts.running], ['to come', counts.processing - counts.running], ['completed', counts.succeeded],
      ['without success', counts.errored], ['cancelled', counts.canceled], ['expired', counts.expired], ['from recorded answers', counts.recorded]];
    say(this.counts, parts.filter(([, number]) => number > 0).map(([name, number]) => `${count(number)} ${name}`).join(' · ')
      + (found.budget_spent ? ' · what is left of the budget was not enough for more' : ''));
    show(this.cancel, found.status !== 'ended');
    if (found.status === 'canceling') {
      this.cancel.disabled = true;
      say(this.cancel, 'Cancelling …');
    }
    this.tellLinks(found);
    this.cells.update(found);
    document.title = `${words(status)}: ${line(found.name, 60)}`;
    if (this.shownStatus && this.shownStatus !== status) this.around.announce(`experiment ${words(status)}`);
    this.shownStatus = status;
  }

  tellLinks(found) {
    if (this.linked) return;
    this.linked = true;
    const facts = [[[found.tasks, 'task'], [found.arms.length, 'arm'], [found.repeats, 'repeat']].map(([n, what]) => `${count(n)} ${what}${n === 1 ? '' : 's'}`).join(', '), `grader ${line(found.grader, 40)}`,
      `seed ${found.seed}`, ...Object.entries(found.metadata ?? {}).slice(0, 20).map(([key, value]) => `${line(key, 40)}=${line(value, 80)}`)];
    const links = FORMATS.flatMap(([format, name], at) => {
      const way = format === 'html' ? { target: '_blank', rel: 'noopener' } : { download: '' };
      return [at ? ', ' : '', h('a', { href: api.reportPath(this.id, format), ...way }, name)];
    });
    fill(this.links, `${facts.join(' · ')} · report as `, ...links);
  }

  async end() {
    this.cancel.disabled = true;
    try {
      this.update(await api.cancelExperiment(this.id));
      this.over = false;
      this.look();
    } catch (problem) {
      this.tell(problem.message);
      this.cancel.disabled = false;
    }
  }
}

/** What an experiment's status looks like. */
export const LOOKS = { in_progress: 'running', canceling: 'running', ended: 'completed', cancelled: 'cancelled', budget_spent: 'partial', expired: 'partial' };

/** Ended is not all there is to say: why it ended before its end. */
export function shownStatus(found) {
  if (found.status !== 'ended') return found.status;
  if (found.budget_spent) return 'budget_spent';
  if (found.counts.expired) return 'expired';
  return found.cancelled_at ? 'cancelled' : 'ended';
}

/** The cells that are jobs, fetched when somebody wants to see them, some at a time. */
class Cells {
  /** @param {string} id @param {AbortSignal} signal */
  constructor(id, signal) {
    this.id = id;
    this.signal = signal;
    this.rows = new Map();
    this.after = 0;
    this.body = h('tbody');
    this.more = button('More', () => this.fetch(), { class: 'more', hidden: true });
    this.fault = h('p', { class: 'fault', role: 'alert', hidden: true });
    this.box = h('details', { on: { toggle: () => this.box.open && !this.rows.size && this.fetch() } },
      h('summary', {}, 'Cells and their jobs'),
      h('div', { class: 'wide', tabindex: '0', role: 'region', 'aria-label': 'Cells' }, h('table', { class: 'figures-table' },
        h('thead', {}, h('tr', {}, ...['arm', 'task', 'repeat', 'status', 'cost', 'time', 'job'].map((name) => h('th', { scope: 'col' }, name)))),
        this.body)), this.more, this.fault);
    this.node = h('section', { hidden: true }, this.box);
  }

  update(found) {
    show(this.node, found.counts.total > 0);
    const key = `${found.ended} ${found.counts.running}`;
    if (this.key !== key && this.box.open && this.rows.size) this.fetch(true);
    this.key = key;
  }

  /** The next cells; or those that are shown, as they are now. */
  async fetch(again = false) {
    if (this.busy) return;
    this.busy = true;
    this.more.disabled = true;
    show(this.fault, false);
    try {
      const until = again ? this.after : Infinity;
      let after = again ? 0 : this.after;
      do {
        const page = await api.experimentCells(this.id, PAGE, after, this.signal);
        for (const one of page.data) this.draw(one);
        after = page.data.at(-1)?.line ?? until;
        this.after = Math.max(this.after, page.data.at(-1)?.line ?? 0);
        show(this.more, page.has_more);
      } while (again && after < until);
      arrange(this.body, [...this.rows.values()].map((row) => row.node));
    } catch (problem) {
      if (!this.signal.aborted) {
        say(this.fault, problem.message);
        show(this.fault, true);
      }
    }
    this.more.disabled = false;
    this.busy = false;
  }

  draw(cell) {
    let row = this.rows.get(cell.line);
    if (!row) {
      row = { mark: sign(cell.status), status: h('span'), cost: h('td'), time: h('td') };
      row.node = h('tr', {}, h('th', { scope: 'row', dir: 'auto' }, line(cell.arm, 100)), h('td', { dir: 'auto' }, line(cell.task, 100)),
        h('td', {}, String(cell.repeat)), h('td', { class: 'state' }, row.mark, ' ', row.status), row.cost, row.time,
        h('td', {}, h('a', { href: `#/jobs/${encodeURIComponent(cell.job)}` }, 'open', h('span', { class: 'unseen' }, ` the job of ${line(cell.arm, 60)}, ${line(cell.task, 60)}`))));
      this.rows.set(cell.line, row);
    }
    turn(row.mark, cell.status);
    say(row.status, words(cell.status));
    say(row.cost, cell.cost_usd === null ? '—' : money(cell.cost_usd));
    say(row.time, cell.elapsed === null ? '—' : duration(cell.elapsed));
  }
}
