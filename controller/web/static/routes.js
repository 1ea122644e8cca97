// SPDX-License-Identifier: Apache-2.0
// Trees and paths as links of the fabric: which way a host's packet takes. Pure functions.

import { nodeOf } from "./format.js";

/** Jobs that have not ended. */
export const running = (live) => live.jobs.filter((job) => job.state !== "finished");

/** A job's identity on the page. */
export const jobKey = (job) => `${job.name}#${job.epoch}`;

/** All trees: [{job, number, root, weight, links}], links of hosts last. */
export function trees(live) {
  return running(live).flatMap((job) => job.trees.map((tree, number) => (
    { job, number, root: tree.root, weight: tree.weight, links: [...tree.links, ...tree.hosts] })));
}

/** The links from a host up to the root of a tree, in order: [{link, from, to}]; empty where it is not of the tree. */
export function way(fabric, tree, host) {
  const next = new Map();
  for (const number of tree.links) {
    const link = fabric.links[number];
    if (!link) continue;
    for (const [one, other] of [[nodeOf(link.a), nodeOf(link.b)], [nodeOf(link.b), nodeOf(link.a)]]) {
      if (!next.has(one)) next.set(one, []);
      next.get(one).push({ link: number, from: one, to: other });
    }
  }
  const came = new Map([[host, null]]);
  const queue = [host];
  while (queue.length) {
    const here = queue.shift();
    if (here === tree.root) break;
    for (const step of next.get(here) || []) {
      if (!came.has(step.to)) {
        came.set(step.to, step);
        queue.push(step.to);
      }
    }
  }
  const steps = [];
  for (let step = came.get(tree.root); step; step = came.get(step.from)) steps.unshift(step);
  return steps;
}

/** The steps of a recorded packet with their levels: 0 for the first link, then up one by one, and down side by side. */
export function hops(packet) {
  const levels = new Map();
  let top = -1;
  return packet.steps.map((step, number) => {
    const level = step.kind === "result" ? 1 + (levels.get(step.source) ?? top) : number;
    if (step.kind === "result") levels.set(step.target, level);
    else top = level;
    return { step, number, level };
  });
}

/** How many children a switch folds in a tree: hosts and switches below it. */
export function children(fabric, tree, name) {
  const up = tree.root === name ? 0 : 1;
  const touching = tree.links.filter((number) => {
    const link = fabric.links[number];
    return link && (nodeOf(link.a) === name || nodeOf(link.b) === name);
  });
  return Math.max(0, touching.length - up);
}
