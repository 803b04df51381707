// How wide texts are that stand in drawings.

import { clipped } from './text.mjs';

const pen = new OffscreenCanvas(1, 1).getContext('2d');

/** The width of a text in pixels. */
export function widthOf(text, font) {
  pen.font = font;
  return pen.measureText(text).width;
}

/** As much of a text as has room. */
export function fitted(text, font, room) {
  if (widthOf(text, font) <= room) return text;
  let [low, high] = [0, text.length];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (widthOf(`${clipped(text, middle)}…`, font) <= room) low = middle;
    else high = middle - 1;
  }
  return `${clipped(text, low).trimEnd()}…`;
}
