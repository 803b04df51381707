// A job's events, those so far and then as they come: read by fetch, which slows the server down where we are slow,
// says why it was refused, and can be given up; resumed by the last id.

import { eventsPath, problemOf } from './api.mjs';
import { Parser } from './sse.mjs';

/** Milliseconds of work after which the browser gets a turn. */
const TURN = 8;
/** Milliseconds without a byte after which a connection is given up: the server says something every 15 s. */
const SILENCE = 40_000;
/** Milliseconds before the next try: the first wait and the longest. */
const WAITS = [500, 10_000];
/** Milliseconds of `retry` by which the server says that the job has ended. */
const ENDED = 3_600_000;
/** Milliseconds after which a hidden page lets go of its connection: a browser has six of them for all its tabs. */
const HIDDEN = 60_000;

/** Gives the browser a turn. */
export function breath() {
  if (globalThis.scheduler?.yield) return globalThis.scheduler.yield();
  return new Promise((done) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => (port1.close(), done());
    port2.postMessage(null);
  });
}

/**
 * Follows one job. `heard(event)` gets each event; `told(state)` what the connection is:
 * 'connecting' | 'open' | 'cut' | 'ended' | 'gone' | 'signed out'.
 */
export class Stream {
  constructor(jobId, heard, told) {
    this.jobId = jobId;
    this.heard = heard;
    this.told = told;
    this.last = 0;
    this.state = '';
    this.tries = 0;
    this.over = false;
    this.asleep = false;
    this.wake = () => {};
    this.awake = () => this.wake();
    this.seen = () => this.onSeen();
    this.sleep = 0;
  }

  /** Reads until `stop`, or until the job has ended. */
  async run() {
    addEventListener('online', this.awake);
    document.addEventListener('visibilitychange', this.seen);
    try {
      while (!this.over) {
        const pause = await this.connection();
        if (this.over) return;
        await this.wait(this.asleep ? 2 ** 31 - 1 : pause);
      }
    } finally {
      clearTimeout(this.sleep);
      removeEventListener('online', this.awake);
      document.removeEventListener('visibilitychange', this.seen);
    }
  }

  stop() {
    this.over = true;
    this.abort?.abort();
    this.wake();
  }

  /** One connection, to its end; the milliseconds to wait before the next. */
  async connection() {
    this.abort = new AbortController();
    if (this.state !== 'cut') this.tell('connecting');
    try {
      const response = await fetch(eventsPath(this.jobId, this.last), {
        signal: this.abort.signal, cache: 'no-store', credentials: 'same-origin',
      });
      if (!response.ok) return await this.refused(response);
      const parser = new Parser();
      const bye = await this.read(response, parser);
      if (this.over) return 0;
      if (parser.retry >= ENDED) return this.end('ended');
      return bye ? 200 : this.cut();
    } catch {
      return this.over || this.asleep ? 0 : this.cut();
    }
  }

  async refused(response) {
    const problem = await problemOf(response);
    if (response.status === 401) return this.end('signed out');
    if (response.status === 404) return this.end('gone');
    return Math.max(this.cut(), (problem.retryAfter ?? 0) * 1_000);
  }

  /** Takes events until the connection ends; whether the server said goodbye. */
  async read(response, parser) {
    const decoder = new TextDecoder();
    const reader = response.body.getReader();
    let bye = false;
    let began = performance.now();
    for (;;) {
      const guard = setTimeout(() => this.abort.abort(), SILENCE);
      const { value, done } = await reader.read().finally(() => clearTimeout(guard));
      if (done || this.over) return bye;
      this.tries = 0;
      this.tell('open');
      began = performance.now();
      for (const event of parser.feed(decoder.decode(value, { stream: true }))) {
        if (event.channel === 'bye') bye = true;
        else this.take(event);
        if (this.over) return bye;
        if (performance.now() - began > TURN) {
          await breath();
          began = performance.now();
        }
      }
    }
  }

  take(event) {
    if (event.id !== null) {
      if (event.id <= this.last) return;
      this.last = event.id;
    }
    try {
      this.heard(event);
    } catch (error) {
      reportError(error); // an event that we don't understand must not cost the others
    }
    if (event.channel === 'done') this.end('ended');
  }

  end(state) {
    this.over = true;
    this.abort.abort();
    this.tell(state);
    return 0;
  }

  /** The connection is lost: how long to wait. */
  cut() {
    this.tell('cut');
    const wait = Math.min(WAITS[0] * 2 ** this.tries, WAITS[1]);
    this.tries += 1;
    return wait * (0.75 + Math.random() / 2);
  }

  tell(state) {
    if (state === this.state) return;
    this.state = state;
    this.told(state);
  }

  wait(milliseconds) {
    return new Promise((done) => {
      const timer = setTimeout(done, milliseconds);
      this.wake = () => (clearTimeout(timer), done());
    });
  }

  onSeen() {
    clearTimeout(this.sleep);
    if (document.hidden) {
      this.sleep = setTimeout(() => {
        this.asleep = true;
        this.abort?.abort();
      }, HIDDEN);
    } else if (this.asleep) {
      this.asleep = false;
      this.wake();
    }
  }
}

/** One stored event, whole. Raises an error that can be shown. */
export async function eventAt(jobId, seq) {
  for await (const event of eventsFrom(jobId, seq - 1)) {
    if (event.id === seq) return event;
    break;
  }
  throw new Error('This event is not there any more.');
}

/** Stored events after a seq, for as long as they are wanted. */
export async function* eventsFrom(jobId, after) {
  const abort = new AbortController();
  try {
    const response = await fetch(eventsPath(jobId, after), { signal: abort.signal, credentials: 'same-origin' });
    if (!response.ok) throw await problemOf(response);
    const parser = new Parser();
    const decoder = new TextDecoder();
    const reader = response.body.getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      for (const event of parser.feed(decoder.decode(part.value, { stream: true }))) if (event.id !== null) yield event;
    }
  } finally {
    abort.abort();
  }
}
