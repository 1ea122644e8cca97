// SPDX-License-Identifier: Apache-2.0
// Asks the controller once a second while the tab is visible, and knows since when it has not answered.

const EACH = 1000;
const PATIENCE = 5000;
/** From the address that the launcher printed: who has it may inject faults. */
const KEY = new URLSearchParams(location.hash.slice(1)).get("key");

/** The JSON at a path. Raises Error with what was answered instead, or that nothing was. */
export async function ask(path, options = {}) {
  const headers = { ...options.headers, ...(KEY && { Authorization: `Bearer ${KEY}` }) };
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE), ...options, headers });
  const text = await answer.text();
  let value = null;
  try {
    value = JSON.parse(text);
  } catch {
    if (answer.ok) throw new Error(`${path}: expected JSON`);
  }
  if (!answer.ok) throw new Error(String(value?.text || text).trim().slice(0, 300) || `HTTP ${answer.status}`);
  return value;
}

export class Feed {
  /** When the last answer came, in ms; null before the first. */
  answered = null;

  problem = "";

  #store;

  #told;

  #timer = 0;

  #asking = false;

  #stale = true;

  /** told(fresh events) is called after every answer, and after every failure, with the feed's state changed. */
  constructor(store, told) {
    this.#store = store;
    this.#told = told;
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) {
        this.#stale = true;
        this.now();
      }
    });
  }

  /** Asks at once, and again each second. */
  async now() {
    clearTimeout(this.#timer);
    if (this.#asking || document.hidden) return;
    this.#asking = true;
    const began = performance.now();
    try {
      this.#told(await this.#once());
    } catch (error) {
      this.problem = error.name === "TimeoutError" ? "no answer within 5 s" : error.message;
      this.#stale = true;
      this.#told([]);
    } finally {
      this.#asking = false;
      if (!document.hidden) {
        this.#timer = setTimeout(() => this.now(), Math.max(100, EACH - (performance.now() - began)));
      }
    }
  }

  async #once() {
    const store = this.#store;
    if (this.#stale || !store.fabric) store.fabric = await ask("fabric.json");
    let live = await ask(`live.json?since=${store.since}`);
    if (store.live && live.uptime < store.live.uptime) {
      store.forget();
      store.fabric = await ask("fabric.json");
      live = await ask("live.json?since=0");
    }
    const fresh = store.take(live);
    if (this.#stale) store.takeHistory(await ask("history.json"));
    this.#stale = false;
    this.answered = Date.now();
    this.problem = "";
    return fresh;
  }
}
