// What tools made for the reader: pictures and texts are shown, HTML and SVG in a frame of an origin of its own that
// runs nothing, the rest is downloaded.

import * as api from '../api.mjs';
import { fill, h, show } from '../dom.mjs';
import { bytes, line, long } from '../text.mjs';

const FRAMED = ['text/html', 'image/svg+xml'];
const PICTURES = ['image/png', 'image/jpeg', 'image/gif', 'image/webp'];
/** Bytes of a text that are fetched to be shown. */
const SHOWN = 2_000_000;

export class Artifacts {
  /** @param {HTMLElement} node @param {string} jobId */
  constructor(node, jobId) {
    this.node = node;
    this.jobId = jobId;
    this.rows = new Map();
    this.list = h('ul', { class: 'artifacts' });
    fill(node, h('h2', {}, 'Artifacts'), this.list);
    show(node, false);
  }

  async refresh() {
    try {
      const { data } = await api.artifacts(this.jobId);
      for (const found of data) {
        if (this.rows.has(found.name)) continue;
        const row = this.row(found);
        this.rows.set(found.name, row);
        this.list.append(row);
      }
      show(this.node, this.rows.size > 0);
    } catch { /* the job's page tells when the service is away; the next look brings them */ }
  }

  row({ name, mime, size }) {
    const kind = String(mime).split(';')[0].trim().toLowerCase();
    const path = api.artifactPath(this.jobId, name);
    const download = h('a', { href: path, download: '', class: 'quiet' }, 'Download');
    const title = [h('b', { dir: 'auto' }, line(name, 120)), h('span', { class: 'quiet' }, ` ${line(kind, 60)}, ${bytes(size)} `)];
    const inside = this.inside(kind, name, path, size);
    if (!inside) return h('li', {}, h('div', { class: 'artifact' }, ...title, download));
    const body = h('div');
    const box = h('details', { class: 'card-call', on: { toggle: () => {
      if (!box.open) body.replaceChildren(); // a frame that nobody looks at does nothing
      else fill(body, inside());
    } } }, h('summary', {}, ...title), body, h('p', {}, download));
    return h('li', {}, box);
  }

  /** What makes the view of an artifact; null where it has none. */
  inside(kind, name, path, size) {
    if (FRAMED.includes(kind)) {
      return () => h('iframe', { class: 'frame-view', sandbox: '', src: api.framePath(this.jobId, name), title: line(name, 100), referrerpolicy: 'no-referrer', loading: 'lazy' });
    }
    if (PICTURES.includes(kind)) return () => h('img', { class: 'picture', src: path, alt: line(name, 100) });
    if ((kind.startsWith('text/') || kind === 'application/json') && size <= SHOWN) {
      return () => {
        const place = h('div', { 'aria-busy': 'true' });
        api.request(path).then((response) => response.text()).then((text) => fill(place, long(text)),
          (problem) => fill(place, h('p', { class: 'fault' }, problem.message)))
          .finally(() => place.removeAttribute('aria-busy'));
        return place;
      };
    }
    return null;
  }
}
