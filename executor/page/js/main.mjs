// The page: who is signed in, what the address names, and the keys.

import * as api from './api.mjs';
import { button, fill, h, say, set, show } from './dom.mjs';
import { line } from './text.mjs';
import { ExperimentPage } from './view/experiment.mjs';
import { ExperimentsPage } from './view/experiments.mjs';
import { JobPage } from './view/job.mjs';
import { JobList } from './view/list.mjs';
import { forget, newJob } from './view/new.mjs';
import { signIn } from './view/signin.mjs';

const byId = (id) => /** @type {any} */ (document.getElementById(id));
const main = byId('main');
const THEMES = ['auto', 'light', 'dark'];
let themeNow = 'auto';

/** The address of a job, or of one of its steps. */
function hrefOf(id, step) {
  const base = `#/jobs/${encodeURIComponent(id)}`;
  return step === undefined ? base : `${base}/steps/${encodeURIComponent(step)}`;
}

/** What an address names. */
function place() {
  const among = /^#\/experiments(?:\/([^/]+))?$/.exec(location.hash);
  const found = /^#\/jobs\/([^/]+)(?:\/steps\/(.+))?$/.exec(location.hash);
  if (!found && !among) return { job: null, step: null, list: location.hash === '#/jobs' };
  try {
    if (among) return { job: null, step: null, experiment: among[1] === undefined ? '' : decodeURIComponent(among[1]) };
    return { job: decodeURIComponent(found[1]), step: found[2] === undefined ? null : decodeURIComponent(found[2]) };
  } catch {
    return { job: null, step: null };
  }
}

class App {
  constructor() {
    this.list = new JobList(byId('jobs'));
    this.page = null;
    this.entered = false;
  }

  async start() {
    this.bar(null);
    byId('skip').addEventListener('click', () => main.focus());
    addEventListener('hashchange', () => this.entered && this.go(true));
    document.addEventListener('keydown', (event) => this.onKey(event));
    api.onSignedOut(() => this.leave());
    const asked = api.session();
    if (place().job) this.go(false); // what is asked for says itself whether a key is needed
    try {
      this.enter(await asked);
    } catch (problem) {
      if (problem.status === 401) this.leave();
      else this.unreachable(problem);
    }
  }

  enter(session) {
    this.bar(session);
    show(byId('jobs'), true);
    this.list.start();
    if (!this.entered || !this.pageId) this.go(false);
  }

  /** Nobody is signed in (any more). */
  leave() {
    if (!this.entered && main.querySelector('#key')) return;
    this.entered = false;
    this.list.stop();
    this.closePage();
    this.bar(null);
    show(byId('jobs'), false);
    signIn(main, (session) => this.enter(session));
  }

  unreachable(problem) {
    this.closePage();
    show(byId('jobs'), false);
    fill(main, h('div', { class: 'card narrow' }, h('h1', {}, 'Not there'), h('p', { role: 'alert' }, problem.message),
      button('Try again', () => location.reload(), { class: 'first' })));
  }

  bar(session) {
    const theme = h('button', { type: 'button', class: 'quiet-button', on: { click: () => {
      setTheme(THEMES[(THEMES.indexOf(getTheme()) + 1) % THEMES.length]);
      say(theme, `Theme: ${getTheme()}`);
    } } }, `Theme: ${getTheme()}`);
    fill(byId('bar'),
      h('a', { class: 'mark', href: '#/' }, 'dagwright'),
      session ? h('a', { class: 'to-list', href: '#/jobs' }, 'Jobs') : null,
      session ? h('a', { href: '#/', 'aria-keyshortcuts': 'n' }, 'New job') : null,
      session ? h('a', { href: '#/experiments' }, 'Experiments') : null,
      h('span', { class: 'gap' }),
      session?.name ? h('span', { class: 'quiet who', title: 'The key that is signed in' }, line(session.name, 40)) : null,
      session?.name ? button('Sign out', () => this.signOut(), { class: 'quiet-button' }) : null,
      h('a', { href: '/docs' }, 'API'), theme);
  }

  async signOut() {
    try {
      await api.signOut();
    } catch { /* it may have ended by itself */ }
    forget();
    this.leave();
  }

  closePage() {
    this.page?.close();
    this.page = null;
    this.pageId = null;
  }

  /** Shows what the address names. */
  go(moved) {
    this.entered = true;
    const { job, step, list, experiment } = place();
    set(byId('frame'), 'data-view', job ? 'job' : list ? 'list' : experiment === undefined ? 'new' : 'experiments');
    this.list.select(job);
    if (job && job === this.pageId) {
      this.page.select(step, moved);
      return;
    }
    this.closePage();
    document.title = 'dagwright';
    if (experiment !== undefined) {
      this.page = experiment ? new ExperimentPage(main, experiment, { announce }) : new ExperimentsPage(main);
      this.page.open();
      if (!moved) return;
      main.scrollTop = 0;
      main.focus({ preventScroll: true });
      return;
    }
    if (!job) {
      newJob(main, (created) => {
        this.list.restart();
        location.hash = hrefOf(created.id);
      });
      return;
    }
    this.pageId = job;
    this.page = new JobPage(main, job, { announce, hrefOf, changed: () => this.list.refresh() });
    this.page.select(step);
    this.page.open();
    if (!moved) return;
    main.scrollTop = 0;
    main.focus({ preventScroll: true });
  }

  onKey(event) {
    const typing = event.target.closest?.('input, textarea, select');
    if (event.altKey || event.ctrlKey || event.metaKey || !this.entered) return;
    if (event.key === 'Escape' && place().step !== null && !typing) this.page?.closeStep();
    if (typing) return;
    if (event.key === '/') {
      set(byId('frame'), 'data-view', 'list');
      byId('search').focus();
    } else if (event.key === 'n') location.hash = '#/';
    else return;
    event.preventDefault();
  }
}

/** Says something to those who listen to the page. */
function announce(text) {
  say(byId('said'), text);
}

function getTheme() {
  return themeNow;
}

function setTheme(chosen) {
  themeNow = THEMES.includes(chosen) ? chosen : 'auto';
  try {
    localStorage.setItem('theme', themeNow);
  } catch { /* it lasts as long as the page */ }
  set(document.documentElement, 'data-theme', themeNow === 'auto' ? null : themeNow);
}

/** The theme that was chosen before. */
function keptTheme() {
  try {
    return localStorage.getItem('theme');
  } catch {
    return null; // a browser that stores nothing
  }
}

setTheme(keptTheme());
new App().start();
