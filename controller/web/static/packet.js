// SPDX-License-Identifier: Apache-2.0
// One packet's way by click: asks the launcher to record a contribution of the selected host, and lists what it passed.

import { el, keyed, put, say } from "./dom.js";
import { ask } from "./feed.js";
import { several } from "./format.js";
import { trees, way } from "./routes.js";

/** Milliseconds in which a recording has to be answered: it takes one second, and the controller is asked before. */
const PATIENCE = 10000;

/** Microseconds since the host's contribution passed, with its sign. */
const after = (time) => `${time < 0 ? "−" : "+"}${Math.abs(time).toFixed(1)} µs`;

/** What a step was, in words. */
export function words(packet, step) {
  const names = { contribution: `contribution of ${packet.who}`, sum: `sum of ${step.source}`, result: "result" };
  const again = step.packets > 1 ? `, passed ${several(step.packets, "time")}` : "";
  if (step.microseconds === null) return `${names[step.kind]}: not seen`;
  return `${names[step.kind]}${step.lanes ? "" : " without elements (presence)"}${again}`;
}

/** With whom the packet met at a step's target, in words; empty for a result. */
export function meeting(packet, step) {
  if (step.kind === "result") return "";
  if (!step.met.length) return `alone in slot ${packet.slot} of ${step.target}`;
  const others = step.met.slice(0, 16).map((one) => `${one.who} ${one.microseconds === null ? "not seen" : after(one.microseconds)}`);
  return `in slot ${packet.slot} of ${step.target} with ${others.join(", ")}${
    step.met.length > 16 ? ` and ${step.met.length - 16} more` : ""}`;
}

export class PacketPanel {
  #store;

  #asked = "";

  #host = "";

  #which = el("select", { "aria-label": "Job and tree" });

  #button = el("button", { type: "button", onclick: () => this.#record() }, "Record a packet");

  #said = el("p", { class: "note", role: "status" });

  #steps = el("ol", { class: "hops" });

  #root = el("div", { class: "packet" }, el("div", { class: "form" }, this.#which, this.#button), this.#said, this.#steps);

  constructor(store) {
    this.#store = store;
  }

  /** Shows itself in the details of a selected host that is in a tree, and nowhere else. */
  update(parent) {
    const { fabric, live, selected } = this.#store;
    const mine = selected?.kind !== "host" ? []
      : trees(live).filter((tree) => way(fabric, tree, selected.name).length);
    if (!mine.length || !parent) {
      this.#root.remove();
      this.#forget("");
      return;
    }
    if (this.#root.parentNode !== parent) parent.append(this.#root);
    if (this.#host !== selected.name) this.#forget(selected.name);
    const named = new Map(mine.map((tree) => [`${tree.job.name}\n${tree.root}`, tree]));
    keyed(this.#which, [...named.values()], (tree) => `${tree.job.name}\n${tree.root}`, (tree) => {
      const option = el("option", {}, `${tree.job.name}, tree over ${tree.root}`);
      option.tree = tree;
      return option;
    }, () => {});
  }

  #forget(host) {
    this.#host = host;
    if (!host && !this.#store.recorded && !this.#said.textContent) return;
    this.#store.recorded = null;
    say(this.#said, "");
    this.#steps.replaceChildren();
  }

  async #record() {
    const tree = this.#which.selectedOptions[0]?.tree;
    const host = this.#host;
    if (!tree || this.#asked) return;
    this.#asked = host;
    put(this.#button, { disabled: true });
    say(this.#said, "Recording for one second at most …");
    try {
      const packet = await ask("packet", { method: "POST", headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ host, job: tree.job.name, tree: tree.root }), signal: AbortSignal.timeout(PATIENCE) });
      if (this.#host === host) this.#show(packet);
    } catch (error) {
      if (this.#host === host) say(this.#said, error.message);
    } finally {
      this.#asked = "";
      put(this.#button, { disabled: false });
    }
  }

  #show(packet) {
    const missing = packet.steps.filter((step) => step.microseconds === null).length;
    say(this.#said, `${packet.operation} of ${packet.job} over ${packet.tree} (${packet.stream}), PSN ${packet.psn}, slot ${packet.slot}`
      + (missing ? `; ${several(missing, "step")} not seen: lost, outside of the recording, or too fast for it` : "; every step was seen")
      + `. Recorded ${several(packet.packets, "packet")}`
      + `${packet.dropped ? `, ${packet.dropped} came too fast` : ""}${packet.corrupt ? `, ${packet.corrupt} were corrupt` : ""}.`);
    this.#steps.replaceChildren(...packet.steps.map((step) => el("li", { class: step.microseconds === null ? "bad" : step.own ? "own" : "" },
      el("time", {}, step.microseconds === null ? "–" : after(step.microseconds)),
      el("b", {}, `${step.source} → ${step.target}`), el("span", {}, words(packet, step)),
      el("span", { class: "dim" }, meeting(packet, step)))));
    this.#store.recorded = packet;
    this.#store.changed();
  }
}
