// SPDX-License-Identifier: Apache-2.0
// What the page knows: the fabric, its last state, events, samples of the last minutes, and what is selected.

const MOST_SAMPLES = 300;
const MOST_EVENTS = 300;

export class Store {
  fabric = null;

  live = null;

  events = [];

  /** Samples, the oldest first: {time, there: [bit/s], back: [bit/s], jobs: {name: bytes/s}}. */
  samples = [];

  /** {kind: "switch"|"link"|"host"|"job"|"tree"|"paths", ...} or null. */
  selected = null;

  /** The way of a packet that was recorded for the selected host, as POST /packet answers; null: none. */
  recorded = null;

  #listeners = [];

  onChange(listener) {
    this.#listeners.push(listener);
  }

  changed() {
    for (const listener of this.#listeners) listener(this);
  }

  select(selected) {
    this.selected = selected;
    this.changed();
  }

  /** The number of the last event that is known, for the next question. */
  get since() {
    return this.events.length ? this.events[this.events.length - 1].seq : 0;
  }

  /** Takes the samples that the controller has kept. */
  takeHistory(history) {
    this.samples = history.times.map((time, at) => ({
      time, there: history.there.map((values) => values[at]), back: history.back.map((values) => values[at]),
      jobs: Object.fromEntries(Object.entries(history.jobs).map(([name, values]) => [name, values[at]])),
    }));
  }

  /** Takes a new state; returns its new events. */
  take(live) {
    const known = this.since;
    const fresh = live.events.filter((event) => event.seq > known);
    this.events = [...this.events, ...fresh].slice(-MOST_EVENTS);
    const last = this.samples[this.samples.length - 1];
    if (!last || live.time > last.time + 0.5) {
      this.samples.push({
        time: live.time, there: live.links.map((link) => link.there_bps), back: live.links.map((link) => link.back_bps),
        jobs: Object.fromEntries(live.jobs.map((job) => [job.name, job.bps])),
      });
      this.samples.splice(0, this.samples.length - MOST_SAMPLES);
    }
    this.live = live;
    return fresh;
  }

  /** Forgets all, because another controller answers. */
  forget() {
    this.events = [];
    this.samples = [];
    this.live = null;
  }
}
