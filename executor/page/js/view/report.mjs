// An experiment's report: its sentence, its tables, its plot. What is here is what report.json says, nothing is
// reckoned anew.

import { h, fill, set, show } from '../dom.mjs';
import { count, duration, line, long, tokens } from '../text.mjs';
import { between, chance, dollars, number, part, percent, points, share, usd } from './figures.mjs';
import { Plot } from './plot.mjs';

/** Rows of a table that are shown; the files hold all. */
const ROWS = 200;
const NOTES = 50;
/** Of the table of arms: what each says, and whether it is there even where all say nothing. */
const COLUMNS = [
  ['quality', (arm) => share(arm.quality), true],
  ['cost per task', (arm) => usd(arm.cost), true],
  ['in all', (arm) => [arm.cost ? `${arm.cost.partial ? '≥ ' : ''}${dollars(arm.cost.total)}` : '—', arm.cost?.unknown ? `${whole(arm.cost.unknown)} unknown` : '']],
  ['time, p95', (arm) => (arm.latency ? [duration(arm.latency.p50), duration(arm.latency.p95)] : ['—'])],
  ['tasks', (arm) => [whole(arm.n_tasks), arm.missing ? `${whole(arm.missing)} cells to come` : ''], true],
  ['replans', (arm) => [whole(arm.replans)]],
  ['failed', (arm) => [whole(arm.failures), ways(arm)]],
  ['escalated', (arm) => [whole(arm.escalated)]],
  ['PGR', (arm) => [number(arm.pgr)]],
];

export class Report {
  /** @param {HTMLElement} node */
  constructor(node) {
    this.conclusion = h('div', { class: 'conclusion' });
    const plot = h('div', { class: 'plotbox' });
    this.arms = table('Arms');
    this.differences = table('Differences from the reference');
    this.routers = table('Routers');
    this.kinds = table('Kinds of tasks');
    this.tokens = table('Tokens by role');
    this.notes = h('section', { class: 'notes', hidden: true });
    this.body = h('div', { class: 'report', hidden: true }, this.conclusion,
      h('section', {}, h('h2', {}, 'Quality and cost'), plot), this.arms.node, this.differences.node, this.routers.node,
      this.kinds.node, this.tokens.node, this.notes);
    node.append(this.body);
    this.plot = new Plot(plot, (name) => this.mark(name));
  }

  close() {
    this.plot.close();
  }

  /** @param {any} report what the API says @param {boolean} over whether all cells have ended */
  show(report, over) {
    const text = JSON.stringify(report) + over;
    if (this.shown === text) return;
    this.shown = text;
    show(this.body, true);
    fill(this.conclusion, h('h2', {}, over ? 'Conclusion' : 'So far'),
      report.conclusion ? long(String(report.conclusion), { first: 2_000 }) : h('p', { class: 'quiet' }, 'There is none yet.'));
    this.plot.show(report);
    this.tellArms(report);
    this.tellDifferences(report);
    this.tellRouters(report);
    this.tellKinds(report);
    this.tellTokens(report);
    const notes = (report.notes ?? []).slice(0, NOTES).map((note) => h('li', {}, line(note, 600)));
    fill(this.notes, h('h2', {}, 'Notes'), h('ul', {}, ...notes));
    show(this.notes, notes.length);
  }

  /** Marks the row of an arm that is looked at in the plot. */
  mark(name) {
    for (const [arm, row] of this.rows ?? []) set(row, 'data-marked', arm === name ? 'true' : null);
  }

  tellArms({ arms = [], baselines = [], experiment }) {
    const shown = arms.slice(0, ROWS);
    const columns = COLUMNS.filter(([, told, always]) => always || shown.some((arm) => !['—', '0'].includes(told(arm)[0])));
    this.rows = new Map();
    const rows = shown.map((arm) => {
      const facts = [arm.kind === 'recorded' ? 'recorded' : arm.mode, arm.name === experiment?.reference ? 'reference' : null,
        arm.pareto ? 'Pareto front' : null, Number.isFinite(arm.checker) ? 'simulated checker' : null, arm.routing];
      const row = h('tr', {}, name_(arm.name, facts), ...columns.map(([, told]) => cell(...told(arm))));
      this.rows.set(arm.name, row);
      return row;
    });
    const beside = baselines.slice(0, ROWS).map((one) => h('tr', { class: 'baseline' }, name_(one.name, [`of ${(one.of ?? []).join(', ')}`]),
      cell(...share(one.quality)), cell(...usd(one.cost)), ...columns.slice(2).map(() => cell(''))));
    this.arms.fill(['arm', ...columns.map(([name]) => name)], [...rows, ...beside], arms.length - rows.length);
  }

  tellDifferences({ differences = [] }) {
    const rows = differences.slice(0, ROWS).map((one) => h('tr', {}, name_(one.arm, [`against ${one.reference}`]),
      cell(points(one.quality?.difference), between(one.quality, points)), cell(chance(one.quality?.p)), cell(chance(one.quality?.p_corrected)),
      cell(one.cost ? `× ${number(one.cost.ratio)}` : 'unknown', between(one.cost, number)), cell(whole(one.n_tasks))));
    this.differences.fill(['arm', 'quality, points', 'p', 'p corrected', 'cost', 'tasks'], rows, differences.length - rows.length);
  }

  tellRouters({ routers = [] }) {
    const calls = (one, at) => cell(percent(one.cpt?.[at]));
    const rows = routers.slice(0, ROWS).map((one) => h('tr', {}, name_(one.arm, [`${one.weak} and ${one.strong}`]),
      cell(...part(one.apgr)), calls(one, '50'), calls(one, '80'), calls(one, '95')));
    this.routers.fill(['router', 'APGR', 'strong calls for 50 % of the gap', '80 %', '95 %'], rows, routers.length - rows.length);
  }

  tellKinds({ kinds = [], arms = [] }) {
    const names = arms.slice(0, 12).map((arm) => arm.name);
    const rows = kinds.slice(0, ROWS).map((one) => h('tr', {}, name_(one.kind, []), ...names.map((name) => {
      const found = one.arms?.[name];
      const quality = found?.quality?.mean ?? found?.quality;
      return cell(Number.isFinite(quality) ? share({ mean: quality })[0] : '—', found ? `${whole(found.n)} tasks` : '');
    })));
    this.kinds.fill(['kind', ...names.map((name) => line(name, 60))], kinds.length > 1 ? rows : [], kinds.length - rows.length);
  }

  tellTokens({ arms = [] }) {
    const rows = arms.slice(0, ROWS).flatMap((arm) => Object.entries(arm.tokens ?? {}).slice(0, 20).map(([role, one]) =>
      h('tr', {}, name_(arm.name, []), cell(line(role, 60)), cell(tokens(one.input ?? 0)), cell(tokens(one.output ?? 0)))));
    this.tokens.fill(['arm', 'role', 'in', 'out'], rows.slice(0, ROWS), 0);
  }
}

/** A table with its title, that scrolls by itself where it is wide; hidden while it has no rows. */
function table(title) {
  const head = h('tr');
  const body = h('tbody');
  const more = h('p', { class: 'quiet', hidden: true });
  const box = h('div', { class: 'wide', tabindex: '0', role: 'region', 'aria-label': title },
    h('table', { class: 'figures-table' }, h('thead', {}, head), body));
  const node = h('section', { hidden: true }, h('h2', {}, title), box, more);
  return { node, fill: (names, rows, left) => {
    fill(head, ...names.map((name) => h('th', { scope: 'col' }, name)));
    fill(body, ...rows);
    fill(more, left > 0 ? `${count(left)} more stand in the files.` : '');
    show(more, left > 0);
    show(node, rows.length);
  } };
}

function name_(name, facts) {
  const told = facts.filter(Boolean).map((fact) => line(fact, 120)).join(' · ');
  return h('th', { scope: 'row' }, h('span', { dir: 'auto' }, line(name, 120)), told ? h('span', { class: 'quiet facts' }, told) : null);
}

/** A figure, and what stands below it in small letters. */
function cell(text, more) {
  return h('td', {}, text, more ? h('span', { class: 'facts' }, more) : null);
}

function whole(value) {
  return Number.isFinite(value) ? count(Math.round(value)) : '—';
}

/** In which ways cells did not come to an answer. */
function ways(arm) {
  const found = Object.entries(arm.statuses ?? {}).filter(([status, n]) => status !== 'completed' && n > 0).slice(0, 6);
  return found.map(([status, n]) => `${whole(n)} ${line(status, 30).replaceAll('_', ' ')}`).join(', ');
}
