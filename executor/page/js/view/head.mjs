// The top of a job: its goal, where it stands, what can be done with it; and its foot with the figures.

import * as api from '../api.mjs';
import { button, fill, h, say, set, show, sign, turn } from '../dom.mjs';
import { isEnded } from '../fold.mjs';
import { clipped, duration, line, long, moment, money, tokens, visible, words } from '../text.mjs';

/** Characters of a goal that stand above the plan; the rest on demand. */
const GOAL = 600;

export class Head {
  /** @param {HTMLElement} node @param {string} jobId @param {(text: string) => void} failed */
  constructor(node, jobId, failed) {
    this.mark = sign('queued');
    this.status = h('b', { class: 'status' });
    this.facts = h('span', { class: 'facts' });
    this.goal = h('div', { class: 'goalbox' });
    const asked = (button_, how) => async () => {
      button_().disabled = true;
      try {
        await how(jobId);
      } catch (problem) {
        failed(problem.message);
        button_().disabled = false;
      }
    };
    this.stop = button('Finish now', asked(() => this.stop, api.stop), { title: 'Nothing new begins; the answer is made of what there is' });
    this.cancel = button('Cancel', asked(() => this.cancel, api.cancel), { class: 'danger' });
    this.error = h('div', { class: 'trouble', role: 'alert', hidden: true });
    this.links = h('p', { class: 'links' });
    fill(node,
      this.goal,
      h('div', { class: 'state' }, this.mark, this.status, this.facts, h('span', { class: 'actions' }, this.stop, this.cancel)),
      this.links, this.error);
    show(this.links, false);
    this.node = node;
  }

  /** @param {any} job what the API says, null before it has @param {import('../fold.mjs').Fold} fold */
  update(job, fold, status) {
    turn(this.mark, status);
    say(this.status, words(status));
    set(this.node, 'data-status', status);
    show(this.stop, !isEnded(status));
    show(this.cancel, !isEnded(status));
    if (job?.cancel_requested && !isEnded(status)) {
      this.cancel.disabled = true;
      say(this.cancel, 'Cancelling …');
    }
    const counts = fold.counts();
    const steps = fold.steps.size;
    say(this.facts, [
      !isEnded(status) && fold.phase ? words(fold.phase) : null,
      steps ? `${counts.completed ?? 0} of ${steps} steps` : null,
      fold.round > 1 ? `round ${fold.round}` : null,
      job?.created_at ? moment(job.created_at) : null,
    ].filter(Boolean).join(' · '));
    if (!job) return;
    this.tellGoal(job);
    this.tellLinks(job);
    const error = isEnded(status) && status !== 'completed' ? (fold.done?.error ?? job.error) : null;
    if (error && this.shownError !== error) fill(this.error, long(error, { first: 2_000 }));
    this.shownError = error;
    show(this.error, error);
  }

  tellGoal({ goal }) {
    if (this.shownGoal === goal) return;
    this.shownGoal = goal;
    const more = goal.length > GOAL;
    fill(this.goal, h('h1', { dir: 'auto' }, visible(clipped(goal, GOAL)) + (more ? '…' : '')),
      more ? h('details', {}, h('summary', {}, 'The whole goal'), long(goal)) : null);
  }

  tellLinks(job) {
    const parts = [];
    if (job.parent) parts.push('forked from ', h('a', { href: `#/jobs/${encodeURIComponent(job.parent)}` }, job.parent));
    if (job.batch) parts.push(`${parts.length ? '; ' : ''}item of the batch ${job.batch}`);
    if (job.experiment) {
      parts.push(parts.length ? '; ' : '', 'a cell of an ', h('a', { href: `#/experiments/${encodeURIComponent(job.experiment)}` }, 'experiment'));
    }
    if (job.kind === 'plan') parts.push(`${parts.length ? '; ' : ''}a plan only, nothing is run`);
    const metadata = Object.entries(job.metadata ?? {}).slice(0, 20).map(([key, value]) => `${line(key, 40)}=${line(value, 80)}`);
    if (metadata.length) parts.push(`${parts.length ? '; ' : ''}${metadata.join(', ')}`);
    const text = JSON.stringify([job.parent, job.batch, job.experiment, job.kind, job.metadata]);
    if (this.shownLinks === text) return;
    this.shownLinks = text;
    fill(this.links, ...parts);
    show(this.links, parts.length);
  }
}

export class Foot {
  /** @param {HTMLElement} node */
  constructor(node) {
    this.values = {};
    const item = (name, title) => h('div', { title: title ?? null }, h('dt', {}, name), (this.values[name] = h('dd', {}, '—')));
    this.parts = h('div', { class: 'parts' });
    fill(node, h('dl', { class: 'figures' }, item('iterations', 'Turns of the agents’ loops'), item('tokens'), item('cost'), item('time')),
      h('details', { class: 'usage' }, h('summary', {}, 'by model and role'), this.parts));
  }

  /** @param {any} job @param {import('../fold.mjs').Fold} fold */
  update(job, fold, status) {
    const usage = fold.done?.usage ?? job?.usage;
    say(this.values.iterations, String(fold.iterations() ?? '—'));
    if (usage) {
      say(this.values.tokens, `${tokens(usage.input_tokens)} in, ${tokens(usage.output_tokens)} out`);
      say(this.values.cost, money(usage.cost_usd, usage.partial && usage.cost_usd !== null));
      this.tellParts(usage);
    }
    this.tick(job, fold, status);
  }

  tick(job, fold, status) {
    let elapsed = fold.done?.elapsed ?? null;
    if (elapsed === null && job) {
      elapsed = isEnded(status) || !job.started_at ? job.elapsed : Math.max(0, api.now() - Date.parse(job.started_at) / 1_000);
    }
    say(this.values.time, elapsed === null ? '—' : duration(elapsed));
  }

  tellParts(usage) {
    const text = JSON.stringify([usage.by_model, usage.by_role]);
    if (this.shown === text) return;
    this.shown = text;
    const rows = (parts) => Object.entries(parts ?? {}).map(([name, one]) => h('tr', {},
      h('th', { scope: 'row' }, line(name, 60)), h('td', {}, tokens(one.calls)), h('td', {}, tokens(one.input_tokens)),
      h('td', {}, tokens(one.output_tokens)), h('td', {}, money(one.cost_usd, one.partial && one.cost_usd !== null))));
    const head = (name) => h('thead', {}, h('tr', {}, ...[name, 'calls', 'in', 'out', 'cost'].map((one) => h('th', { scope: 'col' }, one))));
    fill(this.parts, ...[['model', usage.by_model], ['role', usage.by_role]].map(([name, parts]) =>
      h('table', {}, head(name), h('tbody', {}, ...rows(parts)))));
  }
}
