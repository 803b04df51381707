// A word into a running job.

import * as api from '../api.mjs';
import { button, fill, h, say, show } from '../dom.mjs';
import { isEnded } from '../fold.mjs';

export class Talk {
  /** @param {HTMLElement} node @param {string} jobId */
  constructor(node, jobId) {
    this.node = node;
    const text = h('textarea', { id: 'follow-up', rows: 2, dir: 'auto', placeholder: 'Say something to the job …', 'aria-label': 'Follow-up', on: {
      keydown: (event) => event.key === 'Enter' && (event.ctrlKey || event.metaKey) && form.requestSubmit(),
    } });
    const note = h('span', { class: 'quiet', role: 'status' });
    const fault = h('p', { class: 'fault', role: 'alert', hidden: true });
    const send = button('Send', () => {}, { type: 'submit' });
    const form = h('form', { class: 'talk', on: { submit: async (event) => {
      event.preventDefault();
      if (!text.value.trim()) return;
      send.disabled = true;
      show(fault, false);
      try {
        await api.say(jobId, text.value);
        text.value = '';
        say(note, 'Sent; the job takes it in at its next turn.');
      } catch (problem) {
        say(fault, problem.message);
        show(fault, true);
      }
      send.disabled = false;
    } } }, text, fault, h('div', { class: 'actions' }, send, note));
    fill(node, form);
    show(node, false);
  }

  update(status) {
    show(this.node, !isEnded(status));
  }
}
