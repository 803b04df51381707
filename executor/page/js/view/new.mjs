// A new job.

import * as api from '../api.mjs';
import { button, h, say, show } from '../dom.mjs';

/** What was typed and not sent, while other jobs are looked at. */
const EMPTY = { goal: '', mode: 'auto', budget: '', plan: '', metadata: '' };
const draft = { ...EMPTY };

/** What was typed is the business of those alone who typed it. */
export function forget() {
  Object.assign(draft, EMPTY);
}

/** @param {HTMLElement} node @param {(job: any) => void} created */
export function newJob(node, created) {
  let key = fresh();
  const kept = (name) => ({ input: ({ target }) => {
    draft[name] = target.value;
    key = fresh(); // another request: only the same one, sent again, is the same job
  } });
  const goal = h('textarea', {
    id: 'goal', rows: 5, dir: 'auto', placeholder: 'What is to be done?', on: { ...kept('goal'), keydown: (event) => {
      if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    } },
  });
  const mode = h('select', { id: 'mode', on: kept('mode') },
    h('option', { value: 'auto' }, 'auto: a plan where one is needed'), h('option', { value: 'dag' }, 'a plan of steps'),
    h('option', { value: 'react' }, 'one agent'));
  const budget = h('input', { id: 'budget', placeholder: '0.50usd, 200k tokens, 10m', autocomplete: 'off', on: kept('budget') });
  const plan = h('textarea', { id: 'plan', rows: 4, class: 'code', spellcheck: 'false', on: kept('plan'),
    placeholder: '{"steps": [{"id": "a", "task": "…", "dependencies": []}]}' });
  const metadata = h('textarea', { id: 'metadata', rows: 2, class: 'code', spellcheck: 'false', placeholder: 'key=value', on: kept('metadata') });
  for (const [name, field] of Object.entries({ goal, mode, budget, plan, metadata })) field.value = draft[name];
  const fault = h('p', { class: 'fault', role: 'alert', hidden: true });
  const send = button('Start', () => {}, { type: 'submit', class: 'first' });
  const form = h('form', { class: 'card', on: { submit: async (event) => {
    event.preventDefault();
    send.disabled = true;
    show(fault, false);
    try {
      const job = await api.create(body({ goal, mode, budget, plan, metadata }), key);
      Object.assign(draft, { goal: '', plan: '' });
      created(job);
    } catch (problem) {
      say(fault, problem.message);
      show(fault, true);
    }
    send.disabled = false;
  } } },
  h('h1', {}, 'New job'),
  h('label', { for: 'goal' }, 'Goal'), goal,
  h('div', { class: 'fields' },
    h('div', {}, h('label', { for: 'mode' }, 'How'), mode),
    h('div', {}, h('label', { for: 'budget' }, 'Budget'), budget)),
  h('details', { open: Boolean(draft.plan || draft.metadata) }, h('summary', {}, 'More'),
    h('label', { for: 'plan' }, 'A plan that is run as it is (JSON)'), plan,
    h('label', { for: 'metadata' }, 'Metadata, one a line'), metadata),
  fault,
  h('div', { class: 'actions' }, send, h('span', { class: 'quiet' }, h('kbd', {}, 'Ctrl'), ' ', h('kbd', {}, 'Enter'))));
  node.replaceChildren(form);
  goal.focus({ preventScroll: true });
}

/** A key that nobody else has; `randomUUID` is not there over plain HTTP. */
function fresh() {
  return crypto.getRandomValues(new Uint32Array(4)).join('-');
}

/** The request. Raises an error that says what is wrong. */
function body({ goal, mode, budget, plan, metadata }) {
  const asked = { mode: mode.value };
  if (goal.value.trim()) asked.goal = goal.value;
  if (budget.value.trim()) asked.budget = budget.value.trim();
  if (plan.value.trim()) {
    try {
      asked.plan = JSON.parse(plan.value);
    } catch (error) {
      throw new Error(`The plan is no JSON: ${error.message}`);
    }
  }
  const lines = metadata.value.split('\n').map((one) => one.trim()).filter(Boolean);
  if (lines.length) {
    asked.metadata = Object.fromEntries(lines.map((one) => {
      const [name, ...value] = one.split('=');
      if (!value.length) throw new Error(`Metadata is written key=value: ${one}`);
      return [name.trim(), value.join('=').trim()];
    }));
  }
  return asked;
}
