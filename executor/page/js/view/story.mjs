// The job's own story: its phases, its plans, what the user said to it, how it ended.

import { h, say, show } from '../dom.mjs';
import { count, moment, words } from '../text.mjs';
import { excerptNode } from './rows.mjs';

export class Story {
  /** @param {HTMLElement} node @param {string} jobId */
  constructor(node, jobId) {
    this.jobId = jobId;
    this.list = h('ol', { class: 'rows' });
    this.dropped = h('p', { class: 'quiet', hidden: true });
    node.replaceChildren(this.dropped, this.list);
    this.drawn = 0;
  }

  /** @param {import('../fold.mjs').Fold} fold */
  update(fold) {
    const all = fold.storyDropped + fold.story.length;
    for (const entry of fold.story.slice(Math.max(0, fold.story.length - (all - this.drawn)))) this.list.append(this.row(entry));
    this.drawn = all;
    while (this.list.children.length > fold.story.length) this.list.firstChild.remove();
    say(this.dropped, `${count(fold.storyDropped)} earlier lines are not shown.`);
    show(this.dropped, fold.storyDropped > 0);
  }

  row(entry) {
    const at = h('time', { class: 'time' }, moment(new Date(entry.ts * 1_000)));
    const more = (found) => (found ? excerptNode(this.jobId, found, 800) : null);
    switch (entry.kind) {
      case 'plan': return h('li', {}, at, `plan of ${entry.steps} step${entry.steps === 1 ? '' : 's'}, round ${entry.round}`);
      case 'said': return h('li', { class: 'said' }, at, h('b', {}, 'follow-up'), more(entry.content));
      case 'end': return h('li', {}, at, `ended: ${words(entry.status)}`, more(entry.error));
      default: return h('li', {}, at, words(entry.phase), more(entry.reasoning));
    }
  }
}
