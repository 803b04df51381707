// Where the service has keys: one is exchanged for a cookie that scripts can't read.

import * as api from '../api.mjs';
import { button, h, say, show } from '../dom.mjs';

/** @param {HTMLElement} node @param {(session: any) => void} entered */
export function signIn(node, entered) {
  const key = h('input', {
    id: 'key', type: 'password', autocomplete: 'current-password', spellcheck: 'false', required: true,
  });
  const fault = h('p', { class: 'fault', role: 'alert', hidden: true });
  const send = button('Sign in', () => {}, { type: 'submit', class: 'first' });
  const form = h('form', { class: 'card narrow', on: { submit: async (event) => {
    event.preventDefault();
    send.disabled = true;
    show(fault, false);
    try {
      entered(await api.signIn(key.value.trim()));
    } catch (problem) {
      say(fault, problem.status === 401 ? 'This key is not valid.' : problem.message);
      show(fault, true);
      key.select();
    }
    send.disabled = false;
  } } },
  h('h1', {}, 'Sign in'),
  h('p', { class: 'quiet' }, 'The service asks for an API key. It is exchanged for a cookie of 12 hours.'),
  h('label', { for: 'key' }, 'API key'), key, fault, h('div', { class: 'actions' }, send));
  node.replaceChildren(form);
  key.focus();
}
