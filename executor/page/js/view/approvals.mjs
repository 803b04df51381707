// Calls that wait for a human's word.

import * as api from '../api.mjs';
import { arrange, button, h, say, show } from '../dom.mjs';
import { duration, line } from '../text.mjs';
import { excerptNode } from './rows.mjs';

export class Approvals {
  /** @param {HTMLElement} node @param {string} jobId @param {(id: string) => string} hrefOf
   * @param {HTMLElement} after what has the focus when the card that held it, the last one, goes */
  constructor(node, jobId, hrefOf, after) {
    this.after = after;
    this.node = node;
    this.jobId = jobId;
    this.hrefOf = hrefOf;
    this.cards = new Map();
  }

  /** @param {Map<string, any>} waiting */
  update(waiting) {
    const before = this.cards;
    this.cards = new Map([...waiting.values()].map((call) => {
      const known = before.get(call.call);
      return [call.call, known?.call === call ? known : this.card(call)];
    }));
    const held = [...before.values()].some(({ node }) => node.contains(document.activeElement));
    arrange(this.node, [...this.cards.values()].map((card) => card.node));
    if (held && !this.node.contains(document.activeElement)) (this.node.firstChild ?? this.after).focus();
    show(this.node, this.cards.size > 0);
  }

  tick() {
    for (const { tick } of this.cards.values()) tick();
  }

  card(call) {
    const uncertain = call.status === 'uncertain';
    const until = h('span', { class: 'quiet' });
    const reason = h('input', { placeholder: 'Reason (optional)', autocomplete: 'off', 'aria-label': 'Reason' });
    const fault = h('p', { class: 'fault', role: 'alert', hidden: true });
    const decide = async (approve) => {
      node.focus(); // a button that is disabled loses the focus to nowhere
      yes.disabled = no.disabled = true;
      show(fault, false);
      try {
        await api.decide(this.jobId, call.call, approve, reason.value);
        say(until, approve ? (uncertain ? 'told: it did' : 'approved') : (uncertain ? 'told: it did not' : 'rejected'));
      } catch (problem) {
        say(fault, problem.message);
        show(fault, true);
        yes.disabled = no.disabled = false;
      }
    };
    const yes = button(uncertain ? 'It took effect' : 'Approve', () => decide(true), { class: 'first' });
    const no = button(uncertain ? 'It did not' : 'Reject', () => decide(false), { class: 'danger' });
    const node = h('article', { class: 'approval-card', tabindex: '-1', 'aria-label': uncertain ? 'Did this call take effect?' : 'A call waits for approval' },
      h('div', { class: 'approval-head' }, h('b', {}, uncertain ? 'Did it take effect? ' : 'Waits for you: '),
        h('span', { class: 'tool' }, line(call.name, 100)),
        call.stepId !== undefined ? h('span', { class: 'quiet' }, ' in ', h('a', { href: this.hrefOf(call.stepId) }, line(call.stepId, 80))) : null,
        until),
      call.reason ? excerptNode(this.jobId, call.reason, 600) : null,
      call.args ? excerptNode(this.jobId, call.args, 3_000) : null,
      fault, h('div', { class: 'actions' }, yes, no, reason));
    const tick = () => {
      if (call.until && !yes.disabled) say(until, ` for ${duration(Math.max(0, call.until - api.now()))} more`);
    };
    tick();
    return { call, node, tick };
  }
}
