// SPDX-License-Identifier: Apache-2.0
// Colours by meaning. They are CSS variables, so that light and dark are the style sheet's alone.

export const TREES = 8;

/** The colour of heat 0..1: idle, then warm, then hot. */
export function heat(share) {
  const part = Math.max(0, Math.min(1, share));
  return part < 0.5 ? `color-mix(in oklab, var(--warm) ${Math.round(part * 200)}%, var(--idle))`
    : `color-mix(in oklab, var(--hot) ${Math.round(part * 200 - 100)}%, var(--warm))`;
}

/** Names of jobs get colours in the order in which they come, and keep them; each tree of a job has the next one. */
export class Palette {
  #first = new Map();

  #next = 0;

  /** The colour of a job's tree, paths or slots. */
  of(job, tree = 0) {
    if (!this.#first.has(job)) {
      this.#first.set(job, this.#next);
      this.#next += 2;
    }
    return `var(--tree-${(this.#first.get(job) + tree) % TREES})`;
  }
}
