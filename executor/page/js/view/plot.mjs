// Quality against cost: an arm is a point with its intervals as whiskers. Drawn anew only when the report or the width
// has changed; a point that has the focus keeps it.

import { h, s, say, set } from '../dom.mjs';
import { widthOf } from '../pen.mjs';
import { costAxis, percentTick, qualityAxis, tick } from '../scales.mjs';
import { line } from '../text.mjs';
import { inLine, share, usd } from './figures.mjs';

const HEIGHT = 340;
const EDGE = { top: 14, right: 18, bottom: 44, left: 58 };
const WIDEST = 760;
/** Pixels that a label may take. */
const LABEL = 150;
/** Below so many USD for one task the axis is of a thousand tasks. */
const SMALL = 0.01;
const LEGEND = 'Whiskers are 95 % intervals. Filled: on the Pareto front, no arm is both better and cheaper. Diamonds: baselines.';
const SHAPES = {
  arm: (x, y) => s('circle', { class: 'spot', cx: x, cy: y, r: 4.5 }),
  baseline: (x, y) => s('path', { class: 'spot', d: `M${x},${y - 5.5}l5.5,5.5l-5.5,5.5l-5.5,-5.5z` }),
};

export class Plot {
  /** @param {HTMLElement} node @param {(name: string|null) => void} marked an arm that is looked at */
  constructor(node, marked) {
    this.node = node;
    this.marked = marked;
    this.width = 0;
    this.report = null;
    this.points = [];
    this.svg = s('svg', { class: 'plot', role: 'group', on: {
      keydown: (event) => this.onKey(event), focusin: (event) => this.look(event.target), focusout: () => this.look(null),
      pointerover: (event) => this.look(event.target), pointerleave: () => this.look(document.activeElement),
    } });
    this.told = h('p', { class: 'quiet told' });
    this.missing = h('p', { class: 'quiet' });
    node.replaceChildren(this.svg, this.told, this.missing);
    this.watch = new ResizeObserver(() => this.report && this.draw());
    this.watch.observe(node);
  }

  close() {
    this.watch.disconnect();
  }

  /** @param {any} report as the API has it */
  show(report) {
    this.report = report;
    this.width = 0;
    this.draw();
  }

  draw() {
    const width = Math.max(260, Math.min(WIDEST, this.node.clientWidth));
    if (width === this.width) return;
    this.width = width;
    this.kept = document.activeElement?.closest?.('.plot .point')?.dataset.name ?? this.kept;
    const had = this.svg.contains(document.activeElement);
    const all = spots(this.report);
    const drawn = all.filter((spot) => spot.cost !== null && spot.quality !== null);
    for (const [name, value] of Object.entries({ width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}` })) set(this.svg, name, value);
    this.tellMissing(all.filter((spot) => !drawn.includes(spot)));
    const scale = this.scale(drawn);
    set(this.svg, 'aria-label', `Quality against cost per task. ${scale.told}`);
    this.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    this.points = drawn.sort((a, b) => a.cost.mean - b.cost.mean || a.quality.mean - b.quality.mean)
      .map((spot) => this.point(spot, scale));
    this.svg.replaceChildren(...this.frame(scale), this.front(drawn, scale), ...this.points.map(({ node }) => node), this.labels());
    this.rove(this.kept);
    if (had) this.points.find(({ spot }) => spot.name === this.kept)?.node.focus({ preventScroll: true });
    this.look(had ? document.activeElement : null);
  }

  tellMissing(spots_) {
    const names = spots_.map((spot) => `${line(spot.name, 60)} (${spot.quality === null ? 'not graded' : 'cost unknown'})`);
    say(this.missing, names.length ? `Not drawn: ${names.slice(0, 20).join(', ')}${names.length > 20 ? ', …' : ''}.` : '');
  }

  scale(drawn) {
    const ends = (part) => drawn.flatMap((spot) => [spot[part].mean, spot[part].low ?? spot[part].mean, spot[part].high ?? spot[part].mean]);
    const costs = ends('cost');
    const times = Math.max(0, ...costs) < SMALL ? 1_000 : 1;
    const across = costAxis(costs.map((one) => one * times));
    const up = qualityAxis(ends('quality'));
    const x = (cost) => EDGE.left + ((cost * times - across.from) / (across.to - across.from)) * (this.width - EDGE.left - EDGE.right);
    const y = (quality) => HEIGHT - EDGE.bottom - ((quality - up.from) / (up.to - up.from)) * (HEIGHT - EDGE.top - EDGE.bottom);
    const unit = times === 1 ? 'USD per task' : 'USD per 1,000 tasks';
    const told = `${unit} from 0, quality from ${percentTick(up.from, up.step)} to ${percentTick(up.to, up.step)}`;
    return { across, up, x, y, times, unit, told: `${told}.` };
  }

  /** Axes with their ticks; where quality does not begin at zero, that is said and the axis is broken. */
  frame({ across, up, x, y, times, unit }) {
    const [left, bottom] = [EDGE.left, HEIGHT - EDGE.bottom];
    const right = this.width - EDGE.right;
    const every = Math.ceil((across.ticks.length * 52) / (right - left));
    const parts = up.ticks.flatMap((value) => [
      s('line', { class: 'grid', x1: left, x2: right, y1: y(value), y2: y(value) }),
      s('text', { x: left - 8, y: y(value) + 4, 'text-anchor': 'end' }, percentTick(value, up.step)),
    ]);
    for (const [at, value] of across.ticks.entries()) {
      if (at % every) continue;
      const place = x(value / times);
      parts.push(s('line', { class: 'tick', x1: place, x2: place, y1: bottom, y2: bottom + 4 }),
        s('text', { x: place, y: bottom + 17, 'text-anchor': 'middle' }, tick(value, across.step)));
    }
    const broken = up.from > 0;
    parts.push(s('path', { class: 'axis', d: `M${left},${EDGE.top}V${bottom}H${right}` }),
      s('text', { class: 'name', x: right, y: HEIGHT - 8, 'text-anchor': 'end' }, unit),
      s('text', { class: 'name', x: 14, y: (EDGE.top + bottom) / 2, 'text-anchor': 'middle', transform: `rotate(-90 14 ${(EDGE.top + bottom) / 2})` },
        broken ? `quality (begins at ${percentTick(up.from, up.step)})` : 'quality'));
    if (broken) parts.push(s('path', { class: 'axis break', d: `M${left - 5},${bottom - 6}l10,-4m-10,8l10,-4` }));
    return [s('g', { class: 'axes', 'aria-hidden': 'true' }, ...parts)];
  }

  /** The best quality for each cost, as steps: between two arms nothing better is known. */
  front(drawn, { x, y }) {
    const best = drawn.filter((spot) => spot.pareto).sort((a, b) => a.cost.mean - b.cost.mean);
    let d = '';
    for (const spot of best) d += d ? `H${x(spot.cost.mean)}V${y(spot.quality.mean)}` : `M${x(spot.cost.mean)},${y(spot.quality.mean)}`;
    return s('path', { class: 'front', d: d || 'M0,0', 'aria-hidden': 'true' });
  }

  point(spot, { x, y }) {
    const [left, top] = [x(spot.cost.mean), y(spot.quality.mean)];
    const whiskers = [];
    if (has(spot.quality)) whiskers.push(`M${left},${y(spot.quality.low)}V${y(spot.quality.high)}`);
    if (has(spot.cost)) whiskers.push(`M${x(spot.cost.low)},${top}H${x(spot.cost.high)}`);
    const node = s('g', { class: 'point', role: 'img', tabindex: '-1', 'aria-label': told(spot), 'data-kind': spot.kind, 'data-pareto': spot.pareto ? 'true' : null,
      'data-simulated': spot.simulated ? 'true' : null },
      s('circle', { class: 'reach', cx: left, cy: top, r: 12 }),
      whiskers.length ? s('path', { class: 'whiskers', d: whiskers.join('') }) : null,
      SHAPES[spot.kind](left, top));
    node.dataset.name = spot.name;
    return { node, spot, left, top };
  }

  /** Names beside the points, where there is room for them; all of them stand in the table, too. */
  labels() {
    const taken = this.points.map(({ left, top }) => ({ left: left - 6, right: left + 6, top: top - 6, bottom: top + 6 }));
    const texts = [];
    for (const { spot, left, top } of this.points) {
      const text = cutTo(line(spot.name, 60), this.font);
      const wide = widthOf(text, this.font);
      const places = [[left + 9, top - 5], [left + 9, top + 13], [left - 9 - wide, top - 5], [left - 9 - wide, top + 13]];
      const free = places.map(([at, base]) => ({ left: at, right: at + wide, top: base - 10, bottom: base + 3 }))
        .find((box) => inside(box, this.width) && !taken.some((other) => overlap(box, other)));
      if (!free) continue;
      taken.push(free);
      texts.push(s('text', { x: free.left, y: free.bottom - 3 }, text));
    }
    return s('g', { class: 'labels', 'aria-hidden': 'true' }, ...texts);
  }

  rove(name) {
    const there = this.points.find(({ spot }) => spot.name === name) ?? this.points[0];
    for (const point of this.points) set(point.node, 'tabindex', point === there ? '0' : '-1');
  }

  /** Says what the point is that is pointed at or has the focus. */
  look(target) {
    const node = target?.closest?.('.point');
    const found = this.points.find((point) => point.node === node);
    if (found && target === document.activeElement) this.rove(this.kept = found.spot.name);
    say(this.told, found ? told(found.spot) : `${LEGEND}${this.points.some(({ spot }) => spot.simulated) ? ' Dashed: the checker is simulated.' : ''}`);
    this.marked(found?.spot.kind === 'arm' ? found.spot.name : null);
  }

  onKey(event) {
    const at = this.points.findIndex(({ node }) => node === event.target.closest?.('.point'));
    const way = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, Home: -this.points.length, End: this.points.length }[event.key];
    if (at < 0 || !way || event.altKey || event.ctrlKey || event.metaKey) return;
    this.points[Math.min(this.points.length - 1, Math.max(0, at + way))].node.focus();
    event.preventDefault();
  }
}

/** What is drawn of a report. Of baselines only those that are no arm of their own. */
function spots(report) {
  const value = (found) => (Number.isFinite(found?.mean) ? found : null);
  const arms = (report.arms ?? []).map((arm) => ({ kind: 'arm', name: String(arm.name), quality: value(arm.quality), cost: value(arm.cost), pareto: Boolean(arm.pareto), simulated: Number.isFinite(arm.checker) }));
  const baselines = (report.baselines ?? []).filter((one) => !(one.of?.length === 1)).map((one) => ({
    kind: 'baseline', name: `${one.name} of ${(one.of ?? []).join(', ')}`, quality: value(one.quality), cost: value(one.cost), pareto: false,
  }));
  return [...arms, ...baselines.filter((one) => one.cost && one.quality)];
}

function has(value) {
  return Number.isFinite(value.low) && Number.isFinite(value.high);
}

/** A point in words. */
function told({ kind, name, quality, cost, pareto, simulated }) {
  const what = kind === 'baseline' ? 'baseline' : pareto ? 'on the Pareto front' : '';
  return [line(name, 100), `quality ${inLine(share(quality))}`, `cost per task ${inLine(usd(cost))}`, what, simulated ? 'its checker is simulated' : ''].filter(Boolean).join(', ');
}

function cutTo(text, font) {
  let shown = text;
  while (shown.length > 1 && widthOf(shown, font) > LABEL) shown = `${shown.slice(0, -2).trimEnd()}…`;
  return shown;
}

function inside(box, width) {
  return box.left >= EDGE.left && box.right <= width - 2 && box.top >= 0 && box.bottom <= HEIGHT - EDGE.bottom;
}

function overlap(a, b) {
  return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
}
