// SPDX-License-Identifier: Apache-2.0
// Small line charts of the last minutes, as SVG: the busiest links, and what every job reduces.

import { el, keyed, put, say, svg } from "./dom.js";
import { bits, duration, nodeOf } from "./format.js";

const WIDTH = 240;
const HEIGHT = 64;
const SECONDS = 300;
const LEAST_SECONDS = 30;
/** Links of hosts carry the same as a rule: two of them stand for all. */
const BUSIEST = { host: 2, uplink: 4 };
/** Samples that are further apart are not joined by a line: nobody looked in between. */
const GAP = 12;

/** The d of a line through points [seconds, value | null], over so many seconds and up to ``top``. */
export function line(points, end, top, seconds = SECONDS) {
  let d = "";
  let last = null;
  for (const [time, value] of points) {
    if (value === null || value === undefined || time < end - seconds) {
      last = null;
      continue;
    }
    const x = (WIDTH * (1 - (end - time) / seconds)).toFixed(1);
    const y = (HEIGHT - 2 - (HEIGHT - 6) * Math.min(1, value / top)).toFixed(1);
    d += `${last !== null && time - last <= GAP ? "L" : "M"}${x} ${y}`;
    last = time;
  }
  return d;
}

/** The seconds that charts show: as many as there are samples of, five minutes at most. */
export function shown(samples, end) {
  const first = samples.find((one) => one.time >= end - SECONDS)?.time ?? end;
  return Math.max(LEAST_SECONDS, Math.min(SECONDS, end - first));
}

/** What to draw: [{key, name, points, words, colour}], jobs first, then the links that were the busiest. */
export function series(store, palette) {
  const { fabric, samples } = store;
  const jobs = [...new Set(samples.flatMap((sample) => Object.keys(sample.jobs)))].map((name) => ({
    key: `job ${name}`, name: `job ${name}, each rank`, words: bits, colour: palette.of(name),
    points: samples.map((sample) => [sample.time, sample.jobs[name] ?? null]),
  })).filter((one) => one.points.some(([, value]) => value));
  const links = fabric.links.map((link, number) => {
    const points = samples.map(({ time, there, back }) => {
      const [one, other] = [there[number] ?? null, back[number] ?? null];
      return [time, one === null && other === null ? null : Math.max(one || 0, other || 0)];
    });
    return { link, key: `link ${link.a}`, name: `${link.a} – ${link.b}`, words: bits, colour: "var(--accent)", points,
      limit: link.rate, most: Math.max(0, ...points.map(([, value]) => value || 0)) };
  }).sort((one, other) => other.most - one.most).filter((one) => one.most > 0);
  const hosts = new Set(fabric.nodes.filter((node) => node.role === "host").map((node) => node.name));
  const isHost = ({ link }) => hosts.has(nodeOf(link.a)) || hosts.has(nodeOf(link.b));
  return [...jobs, ...links.filter((one) => !isHost(one)).slice(0, BUSIEST.uplink),
    ...links.filter(isHost).slice(0, BUSIEST.host)];
}

/** Draws the charts into an element. */
export function draw(parent, store, palette) {
  if (!store.fabric || !store.live) return;
  const end = store.live.time;
  const seconds = shown(store.samples, end);
  keyed(parent, series(store, palette), (one) => one.key, () => el("figure", { class: "chart" },
    el("figcaption", {}, el("bdi", {}), el("b", {})),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" },
      svg("line", { class: "axis", x1: 0, x2: WIDTH, y1: HEIGHT - 1, y2: HEIGHT - 1 }),
      svg("path", { class: "curve", "vector-effect": "non-scaling-stroke" })),
    el("p", { class: "dim times" }, el("span"), el("span"), el("span", {}, "now"))), (figure, one) => {
    const [caption, picture, note] = figure.children;
    const recent = one.points.filter(([time]) => time >= end - SECONDS).map(([, value]) => value || 0);
    const most = Math.max(...recent, 0);
    const now = one.points.length ? one.points[one.points.length - 1][1] : null;
    say(caption.children[0], one.name);
    say(caption.children[1], one.words(now));
    put(picture, { "aria-label": `${one.name}: ${one.words(now)} now, at most ${one.words(most)}` });
    put(picture.lastElementChild, { d: line(one.points, end, Math.max(most, 1), seconds) });
    picture.lastElementChild.style.stroke = one.colour;
    say(note.children[0], `${duration(seconds)} ago`);
    say(note.children[1], `top ${one.words(most)}${one.limit ? `, link ${one.words(one.limit)}` : ""}`);
  });
}
