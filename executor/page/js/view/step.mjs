// One step, opened: what it was to do, what became of it, and what its agent did.

import { fork, now } from '../api.mjs';
import { button, fill, h, say, set, show, sign, turn } from '../dom.mjs';
import { markdown } from '../markdown.mjs';
import { eventAt } from '../stream.mjs';
import { count, duration, line, money, tokens, visible, words } from '../text.mjs';
import { wholeText } from '../trail.mjs';
import { Rows, excerptNode } from './rows.mjs';

export class StepPanel {
  /** @param {HTMLElement} node @param {string} jobId @param {{close: () => void, forked: (job: any) => void, hrefOf: (id: string) => string}} links */
  constructor(node, jobId, stepId, { close, forked, hrefOf }) {
    this.jobId = jobId;
    this.stepId = stepId;
    this.hrefOf = hrefOf;
    this.mark = sign('pending');
    this.status = h('span', { class: 'status' });
    this.facts = h('dl', { class: 'facts' });
    this.task = h('div');
    this.trouble = h('div');
    this.result = h('div');
    const rows = h('div');
    this.rows = new Rows(rows, jobId);
    this.title = h('h2', { tabindex: '-1', id: 'step-title' }, line(stepId, 120));
    fill(node,
      h('div', { class: 'stephead' }, this.mark, this.title, this.status,
        button('Close', close, { class: 'quiet-button', 'aria-keyshortcuts': 'Escape' })),
      this.task, this.facts, this.trouble, this.result,
      h('h3', {}, 'What it did'), rows);
    this.again = button('Run again', () => this.fork(forked), {
      title: 'In a new job: this step and what depends on it; the other results are kept', hidden: true,
    });
    this.fault = h('p', { class: 'fault', role: 'alert', hidden: true });
    node.append(h('div', { class: 'actions again' }, this.again), this.fault);
    this.node = node;
    this.shownResult = this.shownError = this.shownTask = undefined;
  }

  async fork(forked) {
    this.again.disabled = true;
    show(this.fault, false);
    try {
      forked(await fork(this.jobId, this.stepId));
    } catch (problem) {
      say(this.fault, problem.message);
      show(this.fault, true);
      this.again.disabled = false;
    }
  }

  /** @param {any} step @param {boolean} over whether the job has ended */
  update(step, over) {
    show(this.again, step && over);
    if (!step) {
      say(this.status, 'not in this plan');
      return;
    }
    turn(this.mark, step.status);
    say(this.status, words(step.status) + (step.kept ? ', kept' : ''));
    set(this.node, 'data-status', step.status);
    this.tellFacts(step);
    if (this.shownTask !== step.task) {
      this.shownTask = step.task;
      fill(this.task, h('p', { class: 'taskline', dir: 'auto' }, visible(step.task)));
    }
    this.tellTrouble(step);
    this.tellResult(step);
    this.rows.show(step.trail, this.stepId);
  }

  tick(step) {
    if (step?.status === 'running') this.tellFacts(step);
  }

  tellFacts(step) {
    const time = step.duration ?? (step.status === 'running' && step.startedAt ? Math.max(0, now() - step.startedAt) : null);
    const usage = step.usage;
    const facts = [
      ['model', step.model ?? step.modelHint],
      ['time', time === null || !step.startedAt ? null : duration(time)],
      ['cost', step.cost === null && !usage ? null : money(step.cost, usage?.partial && step.cost !== null)],
      ['tokens', usage?.calls ? `${tokens(usage.input_tokens)} in, ${tokens(usage.output_tokens)} out` : null],
      ['tool calls', String(step.toolCalls || step.trail.calls || '')],
      ['attempts', step.attempts > 1 ? String(step.attempts) : null],
      ['tried first on', step.escalatedFrom],
      ['changes of model', step.fallbacks ? String(step.fallbacks) : null],
      ['after', step.dependencies.length ? step.dependencies : null],
      ['text of strangers', step.taint.length ? step.taint.map((one) => line(one, 80)).join(', ') : null],
    ].filter(([, value]) => value);
    const text = JSON.stringify(facts);
    if (this.told === text) return;
    this.told = text;
    fill(this.facts, ...facts.map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, ...this.value(value)))));
  }

  value(value) {
    if (!Array.isArray(value)) return [line(value, 200)];
    return value.slice(0, 40).flatMap((name, at) => [at ? ', ' : '', h('a', { href: this.hrefOf(name) }, line(name, 60))]);
  }

  tellTrouble(step) {
    if (this.shownError === step.error) return;
    this.shownError = step.error;
    const parts = [];
    if (step.error) parts.push(h('div', { class: 'trouble' }, excerptNode(this.jobId, step.error)));
    if (step.rootCause) parts.push(h('p', {}, 'Because of ', h('a', { href: this.hrefOf(step.rootCause) }, line(step.rootCause, 80))));
    fill(this.trouble, ...parts);
  }

  tellResult(step) {
    if (this.shownResult === step.result) return;
    this.shownResult = step.result;
    const found = step.result;
    if (!found) {
      fill(this.result);
      return;
    }
    const body = h('div', {}, markdown(found.text));
    if (found.length > found.text.length) body.append(this.wholeResult(found, body));
    fill(this.result, h('h3', {}, 'Result'), body);
  }

  wholeResult(found, body) {
    const more = button(`Show all (${count(found.length)} characters)`, async () => {
      more.disabled = true;
      try {
        body.replaceChildren(markdown(wholeText((await eventAt(this.jobId, found.seq)).data, found.field)));
      } catch (error) {
        more.after(h('span', { class: 'fault' }, ` ${error.message}`));
        more.disabled = false;
      }
    }, { class: 'more' });
    return more;
  }

  /** After it was opened by the user. */
  focus() {
    this.title.focus({ preventScroll: true });
  }
}
