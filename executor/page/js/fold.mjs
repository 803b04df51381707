// A job as its events tell it: the same fold for what comes live and for what is replayed. It knows nothing of the
// page; `changed` collects what a view has to look at again.

import { Answer } from './answer.mjs';
import { ALL_ROWS, Trail, excerpt } from './trail.mjs';
import { copied } from './text.mjs';

/** Lines of the job's own story that are kept. */
const STORY = 200;
/** Characters of a step's task that are kept. */
const TASK = 4_000;
const ENDED = new Set(['completed', 'failed', 'skipped', 'cancelled']);

/** Whether a step, or a job, of this status goes on no more. */
export function isEnded(status) {
  return ENDED.has(status) || status === 'partial' || status === 'budget_exceeded';
}

export class Fold {
  constructor() {
    this.seq = 0;
    /** The round whose plan runs. */
    this.round = 0;
    /** @type {Map<string, any>} the steps of that plan, and those that it keeps */
    this.steps = new Map();
    this.edges = [];
    this.total = { rows: 0 };
    /** What a job's single agent did. */
    this.agent = new Trail(this.total);
    this.answer = new Answer();
    /** @type {Map<string, any>} calls that wait for a human */
    this.approvals = new Map();
    this.story = [];
    this.storyDropped = 0;
    this.phase = '';
    this.done = null;
    /** What views have to look at: 'plan', 'steps', 'agent', 'answer', 'approvals', 'story', 'done', and steps' ids
     * as `step:ID`. @type {Set<string>} */
    this.changed = new Set();
    /** Steps that have changed their status since the last look, for those who listen. @type {Map<string, string>} */
    this.news = new Map();
  }

  /** @param {import('./sse.mjs').Sent} event */
  take({ id, channel, data }) {
    if (id !== null) this.seq = id;
    switch (channel) {
      case 'plan': return this.plan(data);
      case 'step_progress': return this.progress(data);
      case 'step': return this.change(data, (trail) => trail.step(data));
      case 'compact': return this.change(data, (trail) => trail.add('compact', data.seq, data.ts, {
        before: data.original_messages, after: data.kept_messages,
      }));
      case 'phase': return this.inPhase(data);
      case 'inject': return this.inject(data);
      case 'approval': return this.approval(data);
      case 'answer':
        if (data.step_id === undefined) {
          this.answer.take(data, id === null);
          this.changed.add('answer');
        }
        return undefined;
      case 'done':
        this.done = { ...data, answer: undefined };
        this.end(data);
        return undefined;
      default: return undefined;
    }
  }

  /** The trail of a step, or of the single agent. */
  trail(stepId) {
    return stepId === undefined || stepId === null ? this.agent : this.stepOf(stepId).trail;
  }

  change(data, how) {
    const { step_id: stepId } = data;
    how(this.trail(stepId));
    this.changed.add(stepId === undefined ? 'agent' : `step:${stepId}`);
    if (this.total.rows > ALL_ROWS) this.shorten();
  }

  /** The longest trail loses its older half. */
  shorten() {
    let longest = { trail: this.agent, name: 'agent' };
    for (const [name, { trail }] of this.steps) {
      if (trail.rows.length > longest.trail.rows.length) longest = { trail, name: `step:${name}` };
    }
    longest.trail.drop(Math.ceil(longest.trail.rows.length / 2));
    this.changed.add(longest.name);
  }

  stepOf(stepId) {
    let step = this.steps.get(stepId);
    if (!step) this.steps.set(stepId, (step = this.newStep({ id: stepId, task: '' })));
    return step;
  }

  newStep(planned) {
    return {
      id: planned.id, task: copied(planned.task ?? '', TASK), dependencies: planned.dependencies ?? [],
      toolHint: planned.tool_hint ?? null, modelHint: planned.model_hint ?? null,
      onFailure: planned.on_failure ?? null, status: 'pending', model: null, startedAt: null, duration: null,
      cost: null, usage: null, attempts: 0, error: null, errorCode: null, rootCause: null, result: null,
      iterations: 0, toolCalls: 0, kept: false, taint: [], fallbacks: 0, escalatedFrom: null, trail: new Trail(this.total),
    };
  }

  plan(data) {
    this.round = data.round ?? 1;
    const before = this.steps;
    this.steps = new Map();
    for (const name of data.kept ?? []) {
      const step = before.get(name);
      if (step) this.steps.set(name, Object.assign(step, { kept: true }));
    }
    for (const planned of data.steps) {
      if (this.steps.has(planned.id)) continue;
      const step = this.newStep(planned);
      step.kept = (data.kept ?? []).includes(planned.id);
      const earlier = before.get(planned.id)?.trail;
      if (earlier?.rows.length || earlier?.dropped) {
        earlier.close();
        step.trail = earlier;
        earlier.add('round', data.seq, data.ts, { round: this.round });
      }
      this.steps.set(planned.id, step);
    }
    for (const [name, step] of before) {
      if (this.steps.get(name)?.trail !== step.trail) step.trail.drop(step.trail.rows.length);
    }
    this.edges = data.edges ?? [];
    this.tell('plan', data, { round: this.round, steps: data.steps.length });
    for (const what of ['plan', 'steps']) this.changed.add(what);
  }

  progress(data) {
    const name = data.step_id;
    const step = this.stepOf(name);
    const before = step.status;
    if (data.status === 'running' && data.attempts > 0 && data.attempts !== step.attempts) {
      step.trail.close();
      step.trail.add('attempt', data.seq, data.ts, { attempt: data.attempts + 1 });
    }
    Object.assign(step, {
      status: data.status, model: data.model ?? null, startedAt: seconds(data.started_at), duration: data.duration,
      cost: data.cost, usage: data.usage, attempts: data.attempts ?? 0, errorCode: data.error_code ?? null,
      error: excerpt(data.error, data.seq, 'error'), rootCause: data.root_cause ?? null,
      result: excerpt(data.result, data.seq, 'result', 4_000), iterations: data.iterations ?? 0,
      toolCalls: data.tool_calls ?? 0, taint: data.taint ?? [], fallbacks: data.fallbacks?.length ?? 0,
      escalatedFrom: data.escalated_from ?? null,
      kept: data.kept ?? step.kept,
    });
    if (isEnded(step.status)) step.trail.close();
    if (before !== step.status) this.news.set(name, step.status);
    this.changed.add(`step:${name}`).add('steps');
  }

  inPhase(data) {
    if (data.step_id === undefined) this.phase = data.phase;
    if (data.phase === 'selecting_tools') {
      this.change(data, (trail) => trail.add('choosing', data.seq, data.ts, { tools: data.total_tools }));
      return;
    }
    this.tell('phase', data, { phase: data.phase, reasoning: excerpt(data.reasoning, data.seq, 'reasoning') });
  }

  inject(data) {
    const content = excerpt(data.content, data.seq, 'content');
    const alone = data.step_id === undefined && this.agent.rows.length > 0;
    if (alone || data.step_id !== undefined) {
      this.change(data, (trail) => trail.add('said', data.seq, data.ts, { content }));
    }
    if (!alone) this.tell('said', data, { content });
  }

  approval(data) {
    const { call_id: call, status } = data;
    if (status === 'waiting' || status === 'uncertain') {
      this.approvals.set(call, {
        call, status, stepId: data.step_id, name: copied(String(data.tool_name), 200),
        args: excerpt(data.tool_args, data.seq, 'tool_args', 8_000),
        reason: excerpt(data.reason, data.seq, 'reason'), until: data.deadline ? data.ts + data.deadline : null,
      });
    } else this.approvals.delete(call);
    this.change(data, (trail) => trail.add('approval', data.seq, data.ts, {
      name: copied(String(data.tool_name), 200), status, by: data.decided_by ?? null,
      reason: excerpt(data.reason, data.seq, 'reason'),
    }));
    this.changed.add('approvals');
  }

  end(data) {
    this.agent.close();
    for (const step of this.steps.values()) step.trail.close();
    this.approvals.clear();
    this.tell('end', data, { status: data.status, error: excerpt(data.error, data.seq, 'error') });
    for (const what of ['done', 'steps', 'agent', 'answer', 'approvals']) this.changed.add(what);
  }

  /** Adds a line to the job's story. */
  tell(kind, { seq, ts }, fields) {
    this.story.push({ kind, seq, ts, ...fields });
    if (this.story.length > STORY) {
      this.story.shift();
      this.storyDropped += 1;
    }
    this.changed.add('story');
  }

  /** Turns of the agents' loops so far. */
  iterations() {
    if (this.done) return this.done.iterations;
    let sum = this.agent.turns;
    for (const step of this.steps.values()) {
      if (!step.kept) sum += isEnded(step.status) ? step.iterations : step.trail.turns;
    }
    return sum;
  }

  /** How many steps there are of each status. */
  counts() {
    const found = {};
    for (const { status } of this.steps.values()) found[status] = (found[status] ?? 0) + 1;
    return found;
  }
}

function seconds(text) {
  return text ? Date.parse(text) / 1_000 : null;
}
