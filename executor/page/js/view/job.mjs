// A job's page: its events are folded, and each frame brings up to date what they have changed.

import * as api from '../api.mjs';
import { fill, h, say, show } from '../dom.mjs';
import { Fold, isEnded } from '../fold.mjs';
import { Markdown } from '../markdown.mjs';
import { Stream } from '../stream.mjs';
import { line, words } from '../text.mjs';
import { Approvals } from './approvals.mjs';
import { Artifacts } from './artifacts.mjs';
import { Dag } from './dag.mjs';
import { Foot, Head } from './head.mjs';
import { Rows } from './rows.mjs';
import { StepPanel } from './step.mjs';
import { Story } from './story.mjs';
import { Talk } from './talk.mjs';

/** Milliseconds between two looks at the job's own account, at least; it is the sum of all its model calls. */
const LOOK = 2_000;
const CONNECTION = {
  cut: 'The connection is cut off; it is tried again by itself. What you see may be old.',
};

export class JobPage {
  /**
   * @param {HTMLElement} node @param {string} id
   * @param {{announce: (text: string) => void, changed: () => void, hrefOf: (id: string, step?: string) => string}} around
   */
  constructor(node, id, around) {
    this.id = id;
    this.around = around;
    this.job = null;
    this.fold = new Fold();
    this.stream = new Stream(id, (event) => this.heard(event), (state) => this.told(state));
    this.layouts = new Map();
    this.abort = new AbortController();
    this.build(node);
  }

  build(node) {
    this.node = node;
    const hrefOf = (step) => this.around.hrefOf(this.id, step);
    const part = (name, title, ...children) => (this[`${name}Box`] = h('section', { class: name, hidden: true }, title ? h('h2', {}, title) : null, ...children));
    const place = (name) => (this[name] = h('div'));
    this.connection = h('p', { class: 'connection', role: 'status', hidden: true });
    const head = h('header', { class: 'jobhead' });
    this.panelBox = h('section', { class: 'panel', hidden: true, 'aria-labelledby': 'step-title' });
    const foot = h('footer', { class: 'jobfoot' });
    fill(node, h('div', { class: 'job' },
      h('div', { class: 'column' }, head, this.connection, place('waiting'),
        part('plan', 'Plan', place('dagPlace')), part('agent', 'What the agent did', place('agentPlace')),
        part('answer', 'Answer', place('answerState'), h('div', { class: 'prose', dir: 'auto', id: 'answer' })),
        part('made', null), part('story', 'Timeline', place('storyPlace')), place('talkPlace')),
      this.panelBox), foot);
    this.head = new Head(head, this.id, (text) => this.fail(text));
    this.foot = new Foot(foot);
    this.approvals = new Approvals(this.waiting, this.id, hrefOf, node);
    this.dag = new Dag(this.dagPlace, hrefOf);
    this.agentRows = new Rows(this.agentPlace, this.id);
    this.answer = new Markdown(this.answerBox.querySelector('#answer'));
    this.artifacts = new Artifacts(this.madeBox, this.id);
    this.story = new Story(this.storyPlace, this.id);
    this.talk = new Talk(this.talkPlace, this.id);
  }

  async open() {
    this.running = this.stream.run();
    this.clock = setInterval(() => this.tick(), 1_000);
    await this.look();
  }

  close() {
    this.stream.stop();
    this.abort.abort();
    clearInterval(this.clock);
    clearTimeout(this.looking);
    cancelAnimationFrame(this.frame);
    this.answer.clear();
    this.dag.close();
  }

  /** Asks for the job's own account. */
  async look() {
    clearTimeout(this.looking);
    this.looking = 0;
    const began = performance.now();
    try {
      this.job = await api.job(this.id, this.abort.signal);
    } catch (problem) {
      if (this.abort.signal.aborted) return;
      if (problem.status === 404) this.told('gone');
      else if (problem.status !== 401) this.lookLater(5 * LOOK);
      return;
    }
    this.lookCost = performance.now() - began;
    if (this.job.plan) this.fetchLayout(this.job.plan.round);
    if (this.job.artifacts?.length) this.artifacts.refresh();
    this.later('job');
  }

  /** Asks again after a while: a long job's account costs the server more, so it is asked for less often. */
  lookLater(wait = LOOK) {
    if (this.looking || this.abort.signal.aborted) return;
    this.looking = setTimeout(() => this.look(), Math.max(wait, 5 * (this.lookCost ?? 0)));
  }

  heard(event) {
    this.fold.take(event);
    if (event.channel === 'plan' && !this.layouts.size) this.fetchLayout(this.fold.round);
    this.later();
  }

  told(state) {
    if (this.abort.signal.aborted) return; // the place is another page's
    if (state === 'gone') {
      fill(this.node, h('p', { class: 'card', role: 'alert' }, 'There is no such job.'));
      this.close();
      return;
    }
    say(this.connection, CONNECTION[state] ?? '');
    show(this.connection, CONNECTION[state]);
    if (state === 'cut') this.around.announce('The connection is cut off.');
    if (state === 'open' && this.before === 'cut') {
      this.around.announce('Connected again.');
      this.lookLater();
    }
    this.before = state;
    this.later('job');
  }

  fail(text) {
    say(this.connection, text);
    show(this.connection, true);
  }

  get status() {
    if (this.fold.done) return this.fold.done.status;
    if (this.job && isEnded(this.job.status)) return this.job.status;
    if (this.fold.approvals.size && this.job?.status === 'needs_decision') return 'needs_decision';
    if (this.fold.seq) return this.job?.status === 'needs_decision' ? 'needs_decision' : 'running';
    return this.job?.status ?? 'queued';
  }

  /** Has the next frame bring up to date what has changed. */
  later(what) {
    if (this.abort.signal.aborted) return;
    if (what) this.fold.changed.add(what);
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.render();
    });
  }

  render() {
    const { fold } = this;
    const changed = fold.changed;
    fold.changed = new Set();
    const status = this.status;
    if (changed.has('plan')) this.onPlan();
    for (const name of changed) if (name.startsWith('step:')) this.dag.update(name.slice(5));
    if (this.panel && ['plan', 'job', 'done', `step:${this.stepId}`].some((one) => changed.has(one))) {
      this.panel.update(fold.steps.get(this.stepId), isEnded(status));
    }
    if (changed.has('agent')) {
      show(this.agentBox, fold.agent.rows.length);
      this.agentRows.show(fold.agent);
    }
    if (changed.has('answer')) this.onAnswer();
    if (changed.has('approvals')) this.approvals.update(fold.approvals);
    if (changed.has('story')) {
      show(this.storyBox, fold.story.length);
      this.story.update(fold);
    }
    this.head.update(this.job, fold, status);
    this.foot.update(this.job, fold, status);
    this.talk.update(status);
    this.tellNews(status);
    if ([...['steps', 'approvals', 'plan', 'done'].filter((one) => changed.has(one))].length) this.lookLater();
    const title = `${words(status)}: ${line(this.job?.goal ?? this.id, 60)}`;
    if (document.title !== title) document.title = title;
    if (this.shownStatus !== status) {
      if (this.shownStatus) this.around.changed();
      this.shownStatus = status;
    }
  }

  onAnswer() {
    const { answer, done } = this.fold;
    show(this.answerBox, answer.text || answer.begun || done);
    say(this.answerState, answer.begun && !answer.done && !done ? 'is being written …' : '');
    this.answerBox.setAttribute('aria-busy', String(answer.begun && !answer.done && !done));
    this.answer.show(answer.text, answer.version);
  }

  /** A round has a new plan: its drawing is fetched once. */
  async onPlan() {
    const { round } = this.fold;
    const layout = await this.fetchLayout(round);
    if (!layout || round !== this.fold.round || this.abort.signal.aborted) return;
    show(this.planBox, true);
    this.dag.show(layout, this.fold.steps);
    this.dag.select(this.stepId);
  }

  fetchLayout(round) {
    const known = this.layouts.get(round);
    if (known) return known;
    const asked = api.layout(this.id, round, this.abort.signal).catch((problem) => {
      this.layouts.delete(round);
      if (!this.abort.signal.aborted && problem.status !== 404 && problem.status !== 401) setTimeout(() => this.later('plan'), LOOK);
      return null;
    });
    this.layouts.set(round, asked);
    if (this.layouts.size > 5) this.layouts.delete(this.layouts.keys().next().value);
    return asked;
  }

  /** Opens a step beside the plan; null closes it. */
  select(stepId, focus = false) {
    if (stepId === (this.stepId ?? null)) return;
    const before = this.stepId;
    this.stepId = stepId ?? undefined;
    this.panel = null;
    fill(this.panelBox);
    show(this.panelBox, stepId !== null);
    this.dag.select(this.stepId, focus);
    if (stepId === null) {
      if (focus) this.dag.focus(before);
      return;
    }
    const hrefOf = (step) => this.around.hrefOf(this.id, step);
    const inside = h('div', { class: 'inside' });
    fill(this.panelBox, inside);
    const forked = ({ id }) => {
      location.hash = this.around.hrefOf(id);
      this.around.changed();
    };
    this.panel = new StepPanel(inside, this.id, stepId, { hrefOf, forked, close: () => this.closeStep() });
    this.panel.update(this.fold.steps.get(stepId), isEnded(this.status));
    if (focus) this.panel.focus();
  }

  closeStep() {
    location.hash = this.around.hrefOf(this.id);
  }

  /** Once a second: the clocks of what runs. */
  tick() {
    if (document.hidden || isEnded(this.status)) return;
    this.dag.tick();
    this.panel?.tick(this.fold.steps.get(this.stepId));
    this.foot.tick(this.job, this.fold, this.status);
    this.approvals.tick();
  }

  /** Tells those who listen what has changed, a few words at a time. */
  tellNews(status) {
    const { news } = this.fold;
    if (!news.size && this.spokenStatus === status) return;
    if (this.speaking) return;
    const parts = [...news].slice(0, 3).map(([id, what]) => `${line(id, 40)} ${words(what)}`);
    if (news.size > 3) parts.push(`and ${news.size - 3} more`);
    if (this.spokenStatus !== status) parts.push(`job ${words(status)}`);
    news.clear();
    this.spokenStatus = status;
    this.around.announce(parts.join(', '));
    this.speaking = setTimeout(() => {
      this.speaking = 0;
      if (!this.abort.signal.aborted) this.tellNews(this.status);
    }, LOOK);
  }
}
