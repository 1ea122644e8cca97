// SPDX-License-Identifier: Apache-2.0
// Faults by button: for a local fabric whose launcher offers them, and a viewer who may.

import { el, keyed, say } from "./dom.js";
import { ask } from "./feed.js";
import { duration, nodeOf } from "./format.js";

const LINKS = ["cut", "flap", "silence", "delay"];
const SHARES = ["loss", "duplicate", "reorder", "corrupt"];
const SWITCHES = ["kill", "restart", "stop"];

export class FaultPanel {
  #store;

  #list = el("ul", { class: "active" });

  #said = el("p", { class: "note", role: "status" });

  #kind = el("select", { "aria-label": "Kind of fault" });

  #target = el("select", { "aria-label": "Target" });

  #seconds = el("input", { type: "number", min: 0.1, max: 3600, step: 0.1, value: 5, "aria-label": "Seconds until it is undone" });

  #compiled = null;

  constructor(parent, store) {
    this.#store = store;
    this.#kind.addEventListener("change", () => this.#fillTargets());
    parent.append(el("div", { class: "form" }, this.#kind, this.#target, el("label", {}, "for ", this.#seconds, " s"),
      el("button", { type: "button", onclick: () => this.#inject() }, "Inject"),
      el("button", { type: "button", class: "quiet", onclick: () => this.#post({ undo: null }) }, "End all")),
    this.#said, this.#list);
  }

  /** Reads what is there now, and draws it. */
  async update() {
    let active;
    try {
      active = await ask("faults.json");
    } catch (error) {
      say(this.#said, error.message);
      return;
    }
    if (active.compiled_in !== this.#compiled) {
      this.#compiled = active.compiled_in;
      const kinds = [...LINKS, ...(active.compiled_in ? SHARES : []), ...SWITCHES];
      this.#kind.replaceChildren(...kinds.map((kind) => el("option", { value: kind }, kind)));
      this.#fillTargets();
    }
    keyed(this.#list, active.faults, (fault) => String(fault.number), (fault) => el("li", {}, el("span"),
      el("button", { type: "button", class: "quiet", onclick: () => this.#post({ undo: fault.number }) }, "End")),
    (item, fault) => say(item.firstElementChild, `${fault.text}${fault.left === null ? "" : `, ${duration(fault.left)} left`}`
      + `${fault.problem ? `; not undone: ${fault.problem}` : ""}`));
  }

  #fillTargets() {
    const { fabric } = this.#store;
    const nodes = new Map(fabric.nodes.map((node) => [node.name, node.role]));
    const names = SWITCHES.includes(this.#kind.value) ? fabric.nodes.filter((node) => node.role !== "host").map((node) => node.name)
      : fabric.links.map((link) => nodes.get(nodeOf(link.a)) === "host" ? link.b : link.a);
    this.#target.replaceChildren(...names.map((name) => el("option", { value: name }, name)));
  }

  #inject() {
    const seconds = Number(this.#seconds.value);
    this.#post({ kind: this.#kind.value, target: this.#target.value, seconds: seconds > 0 ? seconds : null });
  }

  async #post(body) {
    try {
      const answer = await ask("fault", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
      say(this.#said, answer.text);
    } catch (error) {
      say(this.#said, error.message);
    }
    await this.update();
  }
}
