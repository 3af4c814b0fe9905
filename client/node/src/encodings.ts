/** Updates in fewer bytes: the difference to the base in half precision, all of it or its largest entries. */

import { fromHalf, toHalf, type Entry } from "./bodies.js";
import { PolytempoError } from "./errors.js";

export interface Encoded {
  entries: Record<string, Entry>;
  /** The difference as it arrives. */
  arrives: Float32Array;
}

/** `fp16`, or `topk:SHARE` with the share of the entries that is sent. */
export function checkEncoding(encoding: string): void {
  const share = Number(/^topk:(.+)$/.exec(encoding)?.[1]);
  if (encoding !== "fp16" && !(share > 0 && share <= 1)) {
    throw new PolytempoError(`Encoding ${encoding} is not known. Expected fp16, or topk:SHARE, such as topk:0.01.`);
  }
}

export function encode(encoding: string, difference: Float32Array): Encoded {
  const places = encoding === "fp16" ? undefined : largest(difference, Number(encoding.slice("topk:".length)));
  const sent = places ? Float32Array.from(places, (place) => difference[place]!) : difference;
  const exponent = exponentFor(sent);
  const scale = 2 ** -exponent;
  const halves = Uint16Array.from(sent, (value) => toHalf(value * scale));
  const entries: Record<string, Entry> = {
    values: { dtype: "F16", shape: [halves.length], data: halves },
    exponent: { dtype: "I32", shape: [1], data: Int32Array.of(exponent) },
  };
  if (places) entries["gaps"] = gapsBefore(places);
  const arrives = new Float32Array(difference.length);
  halves.forEach((half, i) => (arrives[places ? places[i]! : i] = fromHalf(half) / scale));
  return { entries, arrives };
}

/** Places of the entries with the largest magnitude, in order. */
function largest(difference: Float32Array, share: number): Uint32Array {
  const places = Uint32Array.from(difference, (_, i) => i);
  places.sort((a, b) => Math.abs(difference[b]!) - Math.abs(difference[a]!) || a - b);
  return places.slice(0, Math.ceil(share * places.length - 1e-9)).sort();
}

/** It brings the largest value between 2^14 and 2^15. */
function exponentFor(values: Float32Array): number {
  const most = values.reduce((found, value) => Math.max(found, Math.abs(value)), 0);
  return most ? Math.min(127, Math.max(-126, Math.floor(Math.log2(most)) - 14)) : -126;
}

function gapsBefore(places: Uint32Array): Entry {
  const gaps = Uint32Array.from(places, (place, i) => place - (i ? places[i - 1]! + 1 : 0));
  if (gaps.some((gap) => gap > 65_535)) return { dtype: "U32", shape: [gaps.length], data: gaps };
  return { dtype: "U16", shape: [gaps.length], data: Uint16Array.from(gaps) };
}
