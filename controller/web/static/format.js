// SPDX-License-Identifier: Apache-2.0
// Numbers, times and names in words. A number that is not known (null) is a dash.

const NONE = "–";

function scaled(value, units, step, digits = 3) {
  if (value === null || value === undefined) return NONE;
  let unit = 0;
  while (value >= step * 0.9995 && unit < units.length - 1) {
    value /= step;
    unit += 1;
  }
  const text = value === 0 ? "0" : value >= 100 ? value.toFixed(0) : Number(value.toPrecision(digits)).toString();
  return `${text} ${units[unit]}`.trim();
}

/** A rate in bit/s. */
export const bits = (value) => scaled(value, ["b/s", "kb/s", "Mb/s", "Gb/s", "Tb/s"], 1000);
/** A number of bytes. */
export const bytes = (value) => scaled(value, ["B", "kB", "MB", "GB", "TB", "PB"], 1000);
/** A count, shortened from ten thousand on. */
export const count = (value) => value === null || value === undefined ? NONE
  : value < 10000 ? Math.round(value).toLocaleString("en") : scaled(value, ["", "k", "M", "G", "T"], 1000);
/** A rate of packets or operations. */
export const perSecond = (value) => value === null || value === undefined ? NONE : `${count(value)}/s`;
/** A share of 0..1. */
export const percent = (value) => value === null || value === undefined ? NONE
  : `${value > 0 && value < 0.01 ? "<1" : Math.round(value * 100)} %`;

/** Seconds, in words. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86400)} days`;
}

/** The viewer's clock time of Unix seconds. */
export function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB");
}

/** The node of an end "leaf1:3". */
export function nodeOf(end) {
  const colon = end.lastIndexOf(":");
  return colon < 0 ? end : end.slice(0, colon);
}

/** "1 switch", "2 switches". */
export function several(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}
