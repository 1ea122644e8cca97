// SPDX-License-Identifier: Apache-2.0
// Everything beside the drawing: headline, what is selected, jobs, events, and switches with their slots.

import { el, keyed, put, say } from "./dom.js";
import { bits, bytes, clock, count, duration, nodeOf, percent, perSecond, several } from "./format.js";
import { jobKey, running, trees, way } from "./routes.js";

const TROUBLE = new Set(["down", "killed", "link down", "fault"]);
const SHOWN_EVENTS = 100;
const SHOWN_OPEN = 256;

/** The state of the fabric in one sentence: {text, level: "good" | "warn" | "bad"}. */
export function headline(live) {
  const down = live.switches.filter((one) => !one.up).map((one) => one.name);
  const links = live.links.filter((one) => !one.up && one.problem).length;
  const halted = running(live).filter((job) => job.recovery && job.recovery.took === null);
  const drained = live.switches.filter((one) => one.drained).map((one) => one.name);
  if (halted.length) return { level: "bad", text: `${several(halted.length, "job")} being planned anew: ${halted[0].recovery.why}` };
  if (down.length) return { level: "bad", text: `Down: ${down.slice(0, 4).join(", ")}${down.length > 4 ? ` and ${down.length - 4} more` : ""}` };
  if (links) return { level: "bad", text: `${several(links, "link")} down` };
  if (drained.length) return { level: "warn", text: `Drained: ${drained.slice(0, 4).join(", ")}` };
  return { level: "good", text: "All switches and links are up" };
}

/** What folding saves: bytes on a rank's link, beside those that a ring of as many ranks sends for the same sums. */
export function saved(live) {
  const shown = running(live).length ? running(live) : live.jobs.filter((job) => job.state === "finished").slice(-1);
  const folds = shown.filter((job) => job.folded > 0);
  if (!folds.length) return "–";
  const total = (each) => folds.map(each).reduce((one, other) => one + other, 0);
  return `${bytes(total((job) => job.folded))}, ring ${bytes(total((job) => job.folded * 2 * (job.world - 1) / job.world))}`;
}

export function drawHeadline(parent, figures, live) {
  const { level, text } = headline(live);
  put(parent, { "data-level": level });
  say(parent, text);
  const known = (values) => values.filter((value) => value !== null);
  const sum = (values) => known(values).length ? known(values).reduce((one, other) => one + other, 0) : null;
  const facts = [
    ["Each rank's link carried", saved(live)],
    ["Switches up", `${live.switches.filter((one) => one.up).length} of ${live.switches.length}`],
    ["Jobs", count(running(live).length)],
    ["Packets folded", perSecond(sum(live.switches.map((one) => one.folded_per_s)))],
    ["Reduced, each rank", bits(sum(running(live).map((job) => job.bps)))],
    ["Repeats at switches", perSecond(sum(live.switches.map((one) => one.repeats_per_s)))],
  ];
  keyed(figures, facts, ([name]) => name, ([name]) => el("div", {}, el("dt", {}, name), el("dd")),
    (node, [, value]) => say(node.lastElementChild, value));
}

export function drawJobs(parent, store, palette) {
  const live = store.live;
  const jobs = [...running(live), ...live.jobs.filter((job) => job.state === "finished").slice(-3)];
  if (!jobs.length) {
    parent.replaceChildren(el("p", { class: "dim" }, "No job has joined yet."));
    return;
  }
  keyed(parent, jobs, jobKey, (job) => {
    const chips = el("div", { class: "chips" });
    const card = el("article", { class: "job" },
      el("h3", {}, el("button", { type: "button", onclick: () => store.select({ kind: "job", name: job.name }) })),
      el("p", { class: "dim" }), el("p", { class: "numbers" }), el("div", { class: "shares", role: "img" }), chips,
      el("p", { class: "note" }));
    return card;
  }, (card, job) => {
    const [title, state, numbers, shares, chips, note] = card.children;
    say(title.firstElementChild, job.name);
    put(title.firstElementChild, { "aria-pressed": store.selected?.kind === "job" && store.selected.name === job.name ? "true" : "false" });
    const lost = job.lost.length ? `, lost ${job.lost.join(", ")}` : "";
    say(state, `${job.state} · ${job.joined} of ${several(job.world, "rank")}${job.left ? `, ${job.left} left` : ""}${lost} · epoch ${job.epoch}`);
    say(numbers, `${several(job.operations, "operation")} · each rank ${bytes(job.bytes)} reduced${job.bps === null ? "" : `, ${bits(job.bps)}`} · ${several(job.retransmissions, "packet")} sent again`);
    put(shares, { "aria-label": `Shares of rails: ${job.rails.map((rail) => `${rail.name} ${percent(rail.share)}`).join(", ") || "not known"}`,
      hidden: job.rails.length === 0 });
    keyed(shares, job.rails, (rail) => rail.name, () => el("span"), (node, rail) => {
      node.style.flexGrow = String(Math.max(0.02, rail.share));
      say(node, `${rail.name} ${percent(rail.share)}`);
    });
    keyed(chips, job.trees.map((tree, number) => ({ tree, number })), ({ number }) => String(number),
      ({ number }) => el("button", { type: "button", class: "chip",
        onclick: () => store.select({ kind: "tree", name: job.name, tree: number }) }), (node, { tree, number }) => {
        const chosen = store.selected?.kind === "tree" && store.selected.name === job.name && store.selected.tree === number;
        put(node, { "aria-pressed": chosen ? "true" : "false" });
        node.style.setProperty("--chip", palette.of(job.name, number));
        say(node, `tree over ${tree.root}, ${percent(tree.weight)}`);
      });
    const planned = job.recovery ? `Planned anew ${several(job.recovery.number, "time")}, last: ${job.recovery.why}; ranks `
      + (job.recovery.took === null ? "stand still" : `stood still for ${duration(job.recovery.took)}`) : "";
    say(note, [planned, job.reason].filter(Boolean).join(". "));
  });
}

export function drawEvents(parent, store) {
  const events = store.events.slice(-SHOWN_EVENTS).reverse();
  if (!events.length) {
    parent.replaceChildren(el("li", { class: "dim" }, "Nothing has happened yet."));
    return;
  }
  keyed(parent, events, (event) => String(event.seq), (event) => el("li", {
    class: TROUBLE.has(event.kind) ? "bad" : event.kind === "re-planned" || event.kind === "drained" ? "warn" : "",
  }, el("time", {}, clock(event.time)), el("b", {}, event.kind), el("bdi", {}, event.target), el("span", {}, event.text)),
  () => {});
}

export function drawSwitches(parent, store) {
  const live = store.live;
  let table = parent.querySelector("table");
  if (!table) {
    const heads = ["Switch", "State", "Slots", "Packets folded", "Repeats at switch", "Entries"];
    table = el("table", {}, el("thead", {}, el("tr", {}, ...heads.map((head) => el("th", { scope: "col" }, head)))), el("tbody"));
    parent.replaceChildren(table);
  }
  keyed(table.tBodies[0], live.switches, (one) => one.name, (one) => el("tr", {},
    el("th", { scope: "row" }, el("button", { type: "button", class: "quiet",
      onclick: () => store.select({ kind: "switch", name: one.name }) }, one.name)),
    el("td"), el("td", {}, el("meter", { min: 0, max: 1 }), el("span")), el("td"), el("td"), el("td")), (row, one) => {
    const [, state, slots, folded, repeats, entries] = row.children;
    put(row, { class: one.up ? one.drained ? "warn" : "" : "bad" });
    say(state, one.up ? one.drained ? "drained" : "up" : `down: ${one.problem}`);
    put(slots.firstElementChild, { value: one.slots ? one.slots_used / one.slots : 0, "aria-label": `slots of ${one.name} in use` });
    say(slots.lastElementChild, ` ${count(one.slots_used)} of ${count(one.slots)}`);
    say(folded, perSecond(one.folded_per_s));
    say(repeats, perSecond(one.repeats_per_s));
    say(entries, count(one.entries));
  });
}

/** What is selected, as rows [name, value]; null where it is gone. */
export function details(store) {
  const { fabric, live, selected } = store;
  if (selected.kind === "link") {
    const link = fabric.links[selected.number];
    const now = live.links[selected.number];
    return { title: `${link.a} – ${link.b}`, rows: [
      ["State", now.up ? now.drained ? "drained" : "up" : `down: ${now.problem || "one of its switches is down"}`],
      ["Rate of the link", link.rate ? bits(link.rate) : "not limited"],
      [`From ${nodeOf(link.a)}`, `${bits(now.there_bps)}, ${perSecond(now.there_pps)} packets`],
      [`From ${nodeOf(link.b)}`, `${bits(now.back_bps)}, ${perSecond(now.back_pps)} packets`],
      ["Lost by faults", perSecond(now.lost_per_s)],
    ] };
  }
  if (selected.kind === "host") {
    const node = fabric.nodes.find((one) => one.name === selected.name);
    const ways = trees(live).map((tree) => [tree, way(fabric, tree, selected.name)]).filter(([, steps]) => steps.length);
    return { title: selected.name, rows: [["Address", node?.address ?? "–"], ...ways.map(([tree, steps]) => [
      `A packet of ${tree.job.name}`,
      `${selected.name} → ${steps.map((step) => step.to).join(" → ")}, where the sum is complete; it returns the same way`,
    ])] };
  }
  if (selected.kind === "switch") {
    const now = live.switches.find((one) => one.name === selected.name);
    return now && { title: selected.name, rows: [
      ["State", now.up ? now.drained ? "drained" : "up" : `down: ${now.problem}`],
      ["Slots", `${count(now.slots_used)} of ${count(now.slots)}`],
      ["Packets folded", perSecond(now.folded_per_s)], ["Repeats at switch", perSecond(now.repeats_per_s)], ["Entries", count(now.entries)],
    ] };
  }
  const job = live.jobs.find((one) => one.name === selected.name);
  return job && { title: selected.kind === "tree" ? `${job.name}, tree over ${job.trees[selected.tree]?.root ?? "–"}` : job.name,
    rows: [["Tenant", job.tenant], ["Hosts", job.hosts.slice(0, 32).join(", ")],
      ["Pinned paths", count(live.paths.filter((path) => path.job === job.name).length)]] };
}

export function drawDetails(parent, title, store) {
  const found = store.selected && store.fabric && store.live ? details(store) : null;
  say(title, found ? found.title : "Selected");
  if (!found) {
    parent.replaceChildren(el("p", { class: "dim" }, "Choose a switch, a host, a link, a job or a tree."));
    return;
  }
  let list = parent.querySelector("dl");
  if (!list) {
    list = el("dl", { class: "rows" });
    parent.replaceChildren(list, el("div", { class: "recorder" }), el("div", { class: "heat" }));
  }
  keyed(list, found.rows.map(([name, value], number) => ({ name, value, number })), (row) => `${row.number} ${row.name}`,
    (row) => el("div", {}, el("dt", {}, row.name), el("dd")), (node, row) => say(node.lastElementChild, row.value));
}

/** Draws the open slots of a switch: a square a slot, warmer the fewer of its contributions have come. */
export function drawHeat(parent, slots, palette) {
  const held = slots.jobs.map((job) => el("p", { class: "dim" }, el("bdi", {}, job.job),
    ` holds ${several(job.count, "slot")}, ${job.open.length} open`));
  const squares = slots.jobs.flatMap((job) => job.open.slice(0, SHOWN_OPEN).map((open) => {
    const square = el("span", { class: "slot", title: `slot ${open.slot}, PSN ${open.psn}, ${open.operation}: `
      + (open.missing.length ? `waits for ${open.missing.join(", ")}` : "waits for the parent's result") });
    square.style.background = palette.of(job.job);
    square.style.opacity = String(0.35 + 0.65 * open.present.length / Math.max(1, open.present.length + open.missing.length));
    return square;
  }));
  const empty = squares.length ? [] : [el("p", { class: "dim" }, "No slot waits for anybody at this moment.")];
  parent.replaceChildren(...held, el("div", { class: "slots" }, ...squares), ...empty);
}
