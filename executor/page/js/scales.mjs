// Axes of plots: where they begin, where they end, what stands along them.

/** A step of 1, 2 or 5 times a power of ten by which a range is cut into about so many parts. */
export function stepOf(range, parts) {
  const rough = range / parts;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough * (1 - 1e-9)) ?? 10 * power;
}

/** An axis from `from` to at least `to`. @returns {{from: number, to: number, step: number, ticks: number[]}} */
export function axis(from, to, parts = 5) {
  const step = stepOf(Math.max(to - from, 1e-9), parts);
  const last = Math.ceil((to - from) / step - 1e-6);
  const ticks = Array.from({ length: last + 1 }, (_, at) => from + at * step);
  return { from, to: from + last * step, step, ticks };
}

/** The axis of money: from zero, so that a half looks like a half. */
export function costAxis(values) {
  const most = Math.max(0, ...values.filter(Number.isFinite));
  return axis(0, most > 0 ? most : 1e-6);
}

/** The axis of quality, 0 to 1 as a rule. It begins at zero unless all that is drawn stands far above, and never ends
 * below 1 where something comes near it. */
export function qualityAxis(values) {
  const found = values.filter(Number.isFinite);
  const [least, most] = [Math.min(1, ...found), Math.max(0, ...found)];
  const from = least > 0.3 ? Math.floor((least - 0.05) * 10) / 10 : Math.min(0, Math.floor(least * 10) / 10);
  const top = most > 1 ? most : Math.min(1, Math.ceil((most + 0.02) * 10) / 10);
  return axis(from, Math.max(top, from + 0.1), 8);
}

/** A quality as its axis says it. */
export function percentTick(value, step) {
  return `${tick(value * 100, step * 100)} %`;
}

/** A number as an axis says it: no more places than its step has. */
export function tick(value, step) {
  const places = Math.min(10, Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));
  return value.toFixed(places);
}
