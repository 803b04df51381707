// The service's API: requests, and its problems as errors that people can read.

/** A request that was refused, or that did not get through (status 0). */
export class Problem extends Error {
  /** @param {number} status @param {string} code @param {string} message @param {number} [retryAfter] seconds */
  constructor(status, code, message, retryAfter) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
  }
}

/** Seconds by which the server's clock is ahead of ours; whole ones, so small ones are taken for none. */
let ahead = 0;
/** Called when a request needs a key. */
let signedOut = () => {};

export function onSignedOut(heard) {
  signedOut = heard;
}

/** The time at the server, in seconds since the epoch. */
export function now() {
  return Date.now() / 1_000 + ahead;
}

/**
 * A request. Raises Problem.
 * @param {string} path
 * @param {{method?: string, body?: any, headers?: Record<string, string>, signal?: AbortSignal, quiet?: boolean}} [options]
 */
export async function request(path, { method = 'GET', body, headers = {}, signal, quiet = false } = {}) {
  const sent = body === undefined ? {} : { body: JSON.stringify(body) };
  if (body !== undefined) headers = { ...headers, 'content-type': 'application/json' };
  let response;
  try {
    response = await fetch(path, { method, headers, signal, cache: 'no-store', credentials: 'same-origin', ...sent });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(0, 'unreachable', 'The service can’t be reached.');
  }
  learnTime(response);
  if (!response.ok) throw await problemOf(response, quiet);
  return response;
}

/** A request's JSON. */
export async function json(path, options) {
  const response = await request(path, options);
  return response.status === 204 ? null : response.json();
}

/** What a response that is no success says. */
export async function problemOf(response, quiet = false) {
  if (response.status === 401 && !quiet) signedOut();
  const after = Number(response.headers.get('retry-after')) || undefined;
  try {
    const told = await response.json();
    return new Problem(response.status, String(told.code), String(told.detail || told.title), after);
  } catch {
    return new Problem(response.status, 'http', `The service answered with ${response.status}.`, after);
  }
}

function learnTime(response) {
  const told = Date.parse(response.headers.get('date') ?? '') / 1_000;
  if (Number.isNaN(told)) return;
  const difference = told + 0.5 - Date.now() / 1_000;
  ahead = Math.abs(difference) > 2 ? difference : 0;
}

const of = (id) => `/v1/jobs/${encodeURIComponent(id)}`;

export const session = () => json('/v1/session', { quiet: true });
export const signIn = (key) =>
  json('/v1/session', { method: 'POST', headers: { 'x-api-key': key }, quiet: true });
export const signOut = () => request('/v1/session', { method: 'DELETE' });
export const list = (query, signal) => json(`/v1/jobs?brief=true&${new URLSearchParams(query)}`, { signal });
export const job = (id, signal) => json(of(id), { signal });
export const layout = (id, round, signal) => json(`${of(id)}/plan?format=layout&round=${round}`, { signal });
export const create = (body, key) =>
  json('/v1/jobs', { method: 'POST', body, headers: { 'idempotency-key': key } });
export const say = (id, text) => json(`${of(id)}/messages`, { method: 'POST', body: { text } });
export const cancel = (id) => json(`${of(id)}/cancel`, { method: 'POST' });
export const stop = (id) => json(`${of(id)}/stop`, { method: 'POST' });
export const fork = (id, step) => json(`${of(id)}/fork`, { method: 'POST', body: { step } });
export const decide = (id, call, approve, reason) =>
  json(`${of(id)}/approvals/${encodeURIComponent(call)}`, { method: 'POST', body: { approve, reason } });
export const artifacts = (id) => json(`${of(id)}/artifacts`);
export const artifactPath = (id, name) => `${of(id)}/artifacts/${encodeURIComponent(name)}`;
export const framePath = (id, name) => `/view/${encodeURIComponent(id)}/${encodeURIComponent(name)}`;
export const eventsPath = (id, after) => `${of(id)}/events?after=${after}`;

const ofExperiment = (id) => `/v1/experiments/${encodeURIComponent(id)}`;

export const experiments = (limit, after, signal) =>
  json(`/v1/experiments?${new URLSearchParams(after ? { limit, after } : { limit })}`, { signal });
export const experiment = (id, signal) => json(ofExperiment(id), { signal });
export const experimentCells = (id, limit, after, signal) =>
  json(`${ofExperiment(id)}/cells?limit=${limit}&after=${after}`, { signal });
export const experimentReport = (id, signal) => json(reportPath(id, 'json'), { signal });
export const reportPath = (id, format) => `${ofExperiment(id)}/report?format=${format}`;
export const cancelExperiment = (id) => json(`${ofExperiment(id)}/cancel`, { method: 'POST' });
export const createExperiment = (body, key) =>
  json('/v1/experiments', { method: 'POST', body, headers: { 'idempotency-key': key } });
