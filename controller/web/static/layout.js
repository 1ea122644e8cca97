// SPDX-License-Identifier: Apache-2.0
// Where nodes are drawn: spines over aggregation switches over leaves over their hosts, or a mesh as the grid that it is.
// Pure functions of a fabric.

import { nodeOf } from "./format.js";

const ROWS = ["spine", "agg", "leaf"];
const SIDE = 10;
const HOST = { width: 46, height: 26, gap: 6 };
/** Pixels of a letter of a host's name, and beside all of them. */
const LETTER = 7;
const BESIDE = 10;
const DOT = { width: 14, height: 14, gap: 4 };
/** Length of the two ends of a cable that leads around a torus. */
const STUB = 16;
export const MOST_LINES = 1500;

/**
 * Places in pixels for a drawing of this width: {width, height, nodes: Map(name -> {x, y, w, h, role, node}), compact}.
 *
 * compact: hosts are squares without names, coloured by what their link carries, and their links are not drawn.
 */
export function place(fabric, width) {
  const switches = fabric.nodes.filter((node) => node.role !== "host");
  return switches.length && switches.every((node) => node.place) ? grid(fabric, switches, width) : tiers(fabric, width);
}

function tiers(fabric, width) {
  const rows = ROWS.map((role) => fabric.nodes.filter((node) => node.role === role)).filter((row) => row.length);
  const hosts = hostsByLeaf(fabric);
  const leaves = rows.length ? rows[rows.length - 1] : [];
  const inner = width - 2 * SIDE;
  const most = Math.max(1, ...leaves.map((leaf) => (hosts.get(leaf.name) || []).length));
  const column = inner / Math.max(1, leaves.length);
  const longest = Math.max(1, ...fabric.nodes.filter((node) => node.role === "host").map((node) => node.name.length));
  const compact = column / most < LETTER * longest + BESIDE;
  const busy = fabric.links.length > 40;
  const gap = Math.max(84, Math.min(busy ? 170 : 128, inner * 0.2));
  const nodes = new Map();
  let y = 30;
  for (const row of rows) {
    const share = inner / row.length;
    const box = { w: Math.max(9, Math.min(112, share - 8)), h: 40 };
    row.forEach((node, number) => {
      nodes.set(node.name, { x: SIDE + share * (number + 0.5), y, ...box, role: node.role, node });
    });
    y += gap;
  }
  if (compact) y -= gap - 50;
  const cell = compact ? DOT : HOST;
  const across = Math.max(1, Math.min(compact ? Math.floor((column - 6) / (cell.width + cell.gap)) : most,
    compact ? Math.ceil(Math.sqrt(most * 2)) : most));
  const pitch = compact ? cell.width + cell.gap : Math.min(column / most, 92);
  const lines = cell.height + cell.gap;
  let deepest = 0;
  for (const leaf of leaves) {
    const below = hosts.get(leaf.name) || [];
    const middle = nodes.get(leaf.name).x;
    below.forEach((node, number) => {
      const line = Math.floor(number / across);
      const beside = Math.min(across, below.length - line * across);
      deepest = Math.max(deepest, line);
      nodes.set(node.name, {
        x: middle + (number % across - (beside - 1) / 2) * pitch, y: y + line * lines,
        w: compact ? Math.min(cell.width, Math.max(4, column - 4)) : Math.min(72, pitch - 6), h: cell.height,
        role: "host", node,
      });
    });
  }
  const height = y + deepest * lines + cell.height / 2 + 12;
  return { width, height, nodes, compact };
}

/** Switches at their rows and columns, each with its hosts below and to the right of it, where no cable passes. */
function grid(fabric, switches, width) {
  const rows = Math.max(...switches.map((node) => node.place[0])) + 1;
  const columns = Math.max(...switches.map((node) => node.place[1])) + 1;
  const hosts = hostsByLeaf(fabric);
  const most = Math.max(1, ...switches.map((node) => (hosts.get(node.name) || []).length));
  const margin = SIDE + STUB;
  const cell = Math.min(190, (width - 2 * margin) / columns);
  const compact = cell < 100;
  const small = compact ? DOT : HOST;
  const box = { w: Math.max(9, Math.min(76, cell * 0.44)), h: compact ? 28 : 34 };
  const across = compact ? Math.max(1, Math.floor((cell - box.w) / (small.width + small.gap))) : 1;
  const lines = Math.ceil(most / across);
  const pitch = Math.max(box.h + lines * (small.height + small.gap) + 16, Math.min(cell, 104));
  const left = (width - columns * cell) / 2;
  const nodes = new Map();
  for (const node of switches) {
    const [row, column] = node.place;
    const at = { x: left + cell * (column + 0.4), y: STUB + SIDE + box.h / 2 + row * pitch };
    nodes.set(node.name, { ...at, ...box, role: node.role, node, last: [rows - 1, columns - 1] });
    (hosts.get(node.name) || []).forEach((host, number) => {
      const [line, beside] = [Math.floor(number / across), number % across];
      const w = compact ? small.width : Math.min(60, cell * 0.42);
      nodes.set(host.name, {
        x: at.x + 6 + w / 2 + beside * (w + small.gap), w, h: small.height, role: "host", node: host,
        y: at.y + box.h / 2 + 8 + small.height / 2 + line * (small.height + small.gap),
      });
    });
  }
  return { width, height: SIDE + STUB + rows * pitch + STUB, nodes, compact };
}

/** The path, as SVG has it, of a link between two nodes that are drawn, moved aside by some pixels. */
export function cable(a, b, aside = 0) {
  const [from, to] = [a.node.place, b.node.place];
  if (!from || !to) {
    const [upper, lower] = a.y <= b.y ? [a, b] : [b, a];
    if (upper.node.place) {
      return `M${upper.x + 2 + aside} ${upper.y + upper.h / 2}V${lower.y}H${lower.x - lower.w / 2}`;
    }
    return `M${upper.x + aside} ${upper.y + upper.h / 2}L${lower.x + aside} ${lower.y - lower.h / 2}`;
  }
  const [first, second] = a.x + a.y <= b.x + b.y ? [a, b] : [b, a];
  const [down, right] = [Math.abs(from[0] - to[0]), Math.abs(from[1] - to[1])];
  if (down === 0 && right === 1) return `M${first.x + first.w / 2} ${first.y + aside}H${second.x - second.w / 2}`;
  const x = first.x - 6 + aside;
  if (down === 1 && right === 0) return `M${x} ${first.y + first.h / 2}V${second.y - second.h / 2}`;
  if (down === 0 && right === a.last[1]) {
    return `M${first.x - first.w / 2} ${first.y + aside}h${-STUB}M${second.x + second.w / 2} ${second.y + aside}h${STUB}`;
  }
  if (right === 0 && down === a.last[0]) {
    return `M${x} ${first.y - first.h / 2}v${-STUB}M${x} ${second.y + second.h / 2}v${STUB}`;
  }
  const bend = [(a.x + b.x) / 2 + 30 + aside, (a.y + b.y) / 2 - 30];
  return `M${a.x} ${a.y}Q${bend[0]} ${bend[1]} ${b.x} ${b.y}`;
}

/** Hosts by the switch that they hang at. */
export function hostsByLeaf(fabric) {
  const roles = new Map(fabric.nodes.map((node) => [node.name, node]));
  const found = new Map();
  const seen = new Set();
  for (const link of fabric.links) {
    const [a, b] = [roles.get(nodeOf(link.a)), roles.get(nodeOf(link.b))];
    if (!a || !b || (a.role === "host") === (b.role === "host")) continue;
    const [host, leaf] = a.role === "host" ? [a, b] : [b, a];
    if (seen.has(host.name)) continue;
    seen.add(host.name);
    if (!found.has(leaf.name)) found.set(leaf.name, []);
    found.get(leaf.name).push(host);
  }
  return found;
}

/** The share of its rate that a link carries in its busier direction; ``unlimited``: what counts as full where it has none. */
export function utilisation(link, live, unlimited) {
  const busiest = Math.max(live?.there_bps || 0, live?.back_bps || 0);
  return Math.min(1, busiest / (link.rate || unlimited));
}

/** What counts as full on links without a rate: the busiest link, but at least 100 Mb/s. */
export function fullRate(links) {
  return Math.max(1e8, ...links.map((live) => Math.max(live.there_bps || 0, live.back_bps || 0)));
}
