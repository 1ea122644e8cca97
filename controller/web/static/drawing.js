// SPDX-License-Identifier: Apache-2.0
// Draws the fabric: switches and hosts in rows, links as thick and warm as they are busy, trees in colours of their own.

import { heat } from "./colours.js";
import { keyed, put, say, svg } from "./dom.js";
import { bits, nodeOf } from "./format.js";
import { cable, fullRate, MOST_LINES, place, utilisation } from "./layout.js";
import { hops, trees, way } from "./routes.js";

/** Seconds between two links of a recorded packet's way. */
const LIT_AFTER = 0.3;

export class Drawing {
  #parent;

  #store;

  #palette;

  #places = null;

  #drawn = "";

  constructor(parent, store, palette) {
    this.#parent = parent;
    this.#store = store;
    this.#palette = palette;
    this.#links = svg("g", { class: "links" });
    this.#followed = svg("g", { class: "followed" });
    this.#recorded = svg("g", { class: "recorded" });
    this.#nodes = svg("g", { class: "nodes" });
    this.#svg = svg("svg", { role: "group", "aria-label": "The fabric" }, this.#links, this.#followed, this.#recorded, this.#nodes);
    parent.append(this.#svg);
    new ResizeObserver(() => this.update()).observe(parent);
  }

  #svg;

  #links;

  #followed;

  #recorded;

  #nodes;

  /** Draws the state that the store has. */
  update() {
    const { fabric, live } = this.#store;
    if (!fabric || !live) return;
    const width = Math.max(320, this.#parent.clientWidth);
    const wanted = `${width} ${fabric.name} ${fabric.nodes.length}`;
    if (wanted !== this.#drawn) {
      this.#places = place(fabric, width);
      this.#drawn = wanted;
      put(this.#svg, { viewBox: `0 0 ${width} ${this.#places.height}`, width, height: this.#places.height });
    }
    this.#drawLinks(fabric, live);
    this.#drawFollowed(fabric, live);
    this.#drawRecorded(fabric);
    this.#drawNodes(fabric, live);
  }

  #cable(link, aside = 0) {
    const [a, b] = [this.#places.nodes.get(nodeOf(link.a)), this.#places.nodes.get(nodeOf(link.b))];
    if (!a || !b) return null;
    return cable(a, b, aside);
  }

  #drawLinks(fabric, live) {
    const full = fullRate(live.links);
    let shown = fabric.links.map((link, number) => ({ link, number, live: live.links[number] }))
      .filter(({ link, live: now }) => now && !(this.#places.compact && this.#isHost(link)));
    if (shown.length > MOST_LINES) {
      shown.sort((one, other) => (other.live.up ? 0 : 1) - (one.live.up ? 0 : 1)
        || utilisation(other.link, other.live, full) - utilisation(one.link, one.live, full));
      shown = shown.slice(0, MOST_LINES);
    }
    keyed(this.#links, shown, (item) => String(item.number), (item) => svg("path", {
      onclick: () => this.#store.select({ kind: "link", number: item.number }),
    }, svg("title")), (node, { link, number, live: now }) => {
      const share = utilisation(link, now, full);
      const d = this.#cable(link);
      if (!d) return;
      const state = now.up ? now.drained ? "link drained" : "link" : "link down";
      const chosen = this.#store.selected?.kind === "link" && this.#store.selected.number === number;
      put(node, { d, class: chosen ? `${state} chosen` : state, "data-link": link.a,
        "stroke-width": (1.2 + 6 * Math.sqrt(share)).toFixed(1) });
      node.style.stroke = now.up && !now.drained ? heat(share) : "";
      say(node.firstElementChild, `${link.a} – ${link.b}: ${bits(now.there_bps)} there, ${bits(now.back_bps)} back`
        + `${now.up ? "" : `; down: ${now.problem || "one of its switches is down"}`}${now.drained ? "; drained" : ""}`);
    });
  }

  #isHost(link) {
    return [link.a, link.b].some((end) => this.#places.nodes.get(nodeOf(end))?.role === "host");
  }

  /** The selected tree, or all trees of the selected job, or a host's ways to the roots, beside the links. */
  #drawFollowed(fabric, live) {
    const selected = this.#store.selected;
    const lines = [];
    const add = (job, number, links) => {
      for (const link of links) lines.push({ job, number, link });
    };
    for (const tree of trees(live)) {
      if (selected?.kind === "job" && selected.name === tree.job.name) add(tree.job.name, tree.number, tree.links);
      if (selected?.kind === "tree" && selected.name === tree.job.name && selected.tree === tree.number) {
        add(tree.job.name, tree.number, tree.links);
      }
      if (selected?.kind === "host") {
        add(tree.job.name, tree.number, way(fabric, tree, selected.name).map((step) => step.link));
      }
    }
    if (selected?.kind === "job") {
      for (const path of live.paths.filter((one) => one.job === selected.name)) add(path.job, 7, path.links);
    }
    const beside = new Map();
    keyed(this.#followed, lines, (one) => `${one.job} ${one.number} ${one.link} ${beside.get(one.link) || 0}`,
      () => svg("path", {}), (node, one) => {
        const d = fabric.links[one.link] && this.#cable(fabric.links[one.link], 3 * (beside.get(one.link) || 0));
        if (!d) return;
        beside.set(one.link, (beside.get(one.link) || 0) + 1);
        put(node, { d, class: "tree" });
        node.style.stroke = this.#palette.of(one.job, one.number);
      });
  }

  /** The way of the recorded packet: up beside each link on one side and down on the other, lit one after the other. */
  #drawRecorded(fabric) {
    const packet = this.#store.recorded;
    const links = new Map(fabric.links.flatMap((link) => [[link.a, link], [link.b, link]]));
    keyed(this.#recorded, packet ? hops(packet) : [],
      ({ number }) => `${packet.tree} ${packet.psn} ${number}`, ({ level }) => {
        const node = svg("path", {}, svg("title"));
        node.style.animationDelay = `${(level * LIT_AFTER).toFixed(2)}s`;
        return node;
      }, (node, { step }) => {
        const link = links.get(step.link);
        const d = link && this.#cable(link, step.kind === "result" ? 5 : -5);
        if (!d) return;
        put(node, { d, class: `hop ${step.kind}${step.microseconds === null ? " missed" : step.own ? " own" : ""}`,
          "data-hop": `${step.source} ${step.target}` });
        say(node.firstElementChild, `${step.source} to ${step.target}: ${step.kind}`);
      });
  }

  #drawNodes(fabric, live) {
    const switches = new Map(live.switches.map((one) => [one.name, one]));
    const roots = new Set(trees(live).map((tree) => tree.root));
    keyed(this.#nodes, fabric.nodes.filter((node) => this.#places.nodes.has(node.name)), (node) => node.name,
      (node) => this.#makeNode(node), (group, node) => {
        const at = this.#places.nodes.get(node.name);
        const now = switches.get(node.name);
        const state = !now ? "host" : !now.up ? "switch down" : now.drained ? "switch drained" : "switch";
        const chosen = this.#store.selected?.name === node.name ? " chosen" : "";
        put(group, { class: `${state}${chosen}`, transform: `translate(${at.x} ${at.y})`, "data-node": node.name,
          "aria-label": `${node.name}: ${now ? now.up ? now.drained ? "drained" : "up" : `down: ${now.problem}` : "host"}` });
        const [box, used, name, note] = group.children;
        put(box, { x: -at.w / 2, y: -at.h / 2, width: at.w, height: at.h, rx: Math.min(7, at.w / 4) });
        const share = now && now.slots ? Math.min(1, now.slots_used / now.slots) : 0;
        put(used, { x: -at.w / 2 + 8, y: at.h / 2 - 7, width: Math.max(0, (at.w - 16) * share).toFixed(1), height: 3 });
        const fits = at.w > 7 * node.name.length;
        say(name, fits ? node.name : "");
        put(name, { y: now && at.w > 60 ? -3 : 4 });
        say(note, !now || at.w <= 60 ? "" : !now.up ? "down" : now.drained ? "drained" : roots.has(node.name) ? "root" : "");
        put(note, { y: 11 });
      });
  }

  #makeNode(node) {
    const kind = node.role === "host" ? "host" : "switch";
    const choose = () => this.#store.select({ kind, name: node.name });
    return svg("g", { tabindex: 0, role: "button", onclick: choose, onkeydown: (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        choose();
      }
    } }, svg("rect", { class: "box" }), svg("rect", { class: "used" }), svg("text", { class: "name" }),
    svg("text", { class: "note" }));
  }
}
