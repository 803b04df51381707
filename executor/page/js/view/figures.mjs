// Figures of a report, as people read them.

/** A quality and its interval: 71.2 % and 65.5 to 76.4. @returns {[string, string]} */
export function share(value) {
  return Number.isFinite(value?.mean) ? [`${hundredths(value.mean)} %`, between(value, hundredths)] : ['—', ''];
}

/** A part of a gap and its interval: 0.712 and 0.655 to 0.764. @returns {[string, string]} */
export function part(value) {
  return Number.isFinite(value?.mean) ? [thousandths(value.mean), between(value, thousandths)] : ['—', ''];
}

/** USD and their interval. Where a part is not known, it is the mean of what is. @returns {[string, string]} */
export function usd(value) {
  return Number.isFinite(value?.mean) ? [dollars(value.mean), between(value, dollars)] : ['unknown', ''];
}

/** Both in one line. */
export function inLine([value, interval]) {
  return interval ? `${value} (${interval})` : value;
}

/** USD in three figures, however small. */
export function dollars(value) {
  if (!Number.isFinite(value)) return 'unknown';
  if (value === 0) return '$0';
  if (Math.abs(value) >= 100) return `$${value.toFixed(2)}`;
  const places = Math.max(2, 2 - Math.floor(Math.log10(Math.abs(value))));
  return `$${value.toFixed(Math.min(12, places))}`;
}

/** A difference in points, hundredths, with its sign. */
export function points(value) {
  if (!Number.isFinite(value)) return '—';
  const text = hundredths(Math.abs(value));
  return Number(text) === 0 ? text : `${value < 0 ? '−' : '+'}${text}`;
}

/** A p-value. */
export function chance(value) {
  if (!Number.isFinite(value)) return '—';
  return value < 0.001 ? '< 0.001' : value.toFixed(3);
}

/** A plain number, as short as it is; what is none is a dash. */
export function number(value, places = 2) {
  return Number.isFinite(value) ? String(Number(value.toFixed(places))) : '—';
}

/** A part of all: 34 %. */
export function percent(value) {
  return Number.isFinite(value) ? `${(value * 100).toFixed(0)} %` : '—';
}

/** An interval, where there is one. */
export function between(value, told) {
  return Number.isFinite(value?.low) && Number.isFinite(value?.high) ? `${told(value.low)} to ${told(value.high)}` : '';
}

function hundredths(value) {
  return (value * 100).toFixed(1);
}

function thousandths(value) {
  return value.toFixed(3);
}
