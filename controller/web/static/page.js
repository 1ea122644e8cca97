// SPDX-License-Identifier: Apache-2.0
// Puts the page together: what is asked for once a second is drawn in each of its parts.

import * as charts from "./charts.js";
import { Palette } from "./colours.js";
import { by, put, say } from "./dom.js";
import { Drawing } from "./drawing.js";
import { FaultPanel } from "./faults.js";
import { ask, Feed } from "./feed.js";
import { clock, duration, several } from "./format.js";
import { PacketPanel } from "./packet.js";
import * as panels from "./panels.js";
import { Store } from "./store.js";

const THEMES = ["auto", "dark", "light"];
const store = new Store();
const palette = new Palette();
const drawing = new Drawing(by("drawing"), store, palette);
const packet = new PacketPanel(store);
const feed = new Feed(store, told);
let faults = null;
let heatOf = "";
let silentSince = null;

function told(fresh) {
  beat();
  if (!store.fabric || !store.live) return;
  const { fabric, live } = store;
  say(by("fabric-name"), fabric.name);
  say(by("fabric-facts"), ` · ${fabric.engine} · ${several(live.switches.length, "switch", "switches")} · ${
    several(fabric.nodes.filter((node) => node.role === "host").length, "host")} · controller up ${duration(live.uptime)}`);
  document.title = `${fabric.name} – NetFold`;
  if (fresh.length && fresh.length < 20) say(by("announce"), fresh.map((event) => `${event.target} ${event.kind}: ${event.text}`).join(". "));
  if (fabric.faults && !faults) {
    faults = new FaultPanel(by("faults-body"), store);
    put(by("faults"), { hidden: false });
  }
  faults?.update();
  store.changed();
}

function draw() {
  if (!store.fabric || !store.live) return;
  panels.drawHeadline(by("headline"), by("figures"), store.live);
  panels.drawDetails(by("details-body"), by("details-title"), store);
  packet.update(by("details-body").querySelector(".recorder"));
  drawing.update();
  panels.drawJobs(by("jobs-body"), store, palette);
  panels.drawEvents(by("events-body"), store);
  panels.drawSwitches(by("switches-body"), store);
  charts.draw(by("traffic-body"), store, palette);
  put(by("deselect"), { hidden: !store.selected });
  heat();
}

/** Reads the slots of the selected switch: only then are they read at all. */
async function heat() {
  const selected = store.selected;
  const parent = by("details-body").querySelector(".heat");
  if (!parent) return;
  if (selected?.kind !== "switch") {
    parent.replaceChildren();
    return;
  }
  if (heatOf === selected.name) return;
  heatOf = selected.name;
  try {
    const slots = await ask(`slots.json?switch=${encodeURIComponent(selected.name)}`);
    if (store.selected?.name === selected.name) panels.drawHeat(parent, slots, palette);
  } catch (error) {
    say(parent, `Slots: ${error.message}`);
  } finally {
    setTimeout(() => { heatOf = ""; }, 1000);
  }
}

/** Says whether the controller answers, and if not, since when. */
function beat() {
  if (feed.problem) {
    silentSince ??= feed.answered ?? Date.now();
    say(by("silent"), `The controller does not answer since ${clock(silentSince / 1000)}: ${feed.problem}. What is shown is what was known then.`);
    say(by("heartbeat"), "no answer");
  } else {
    silentSince = null;
    say(by("heartbeat"), "live");
  }
  put(by("silent"), { hidden: !feed.problem });
  put(by("main"), { class: feed.problem ? "stale" : null });
  put(by("heartbeat"), { "data-level": feed.problem ? "bad" : "good" });
}

function theme(name) {
  put(document.documentElement, { "data-theme": name === "auto" ? null : name });
  say(by("theme"), `Theme: ${name}`);
  try {
    localStorage.setItem("netfold-theme", name);
  } catch {
    // a browser that keeps nothing forgets the choice at the next visit
  }
}

let chosen = "auto";
try {
  chosen = THEMES.includes(localStorage.getItem("netfold-theme")) ? localStorage.getItem("netfold-theme") : "auto";
} catch {
  // as above
}
theme(chosen);
by("theme").addEventListener("click", () => {
  chosen = THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length];
  theme(chosen);
});
by("deselect").addEventListener("click", () => store.select(null));
store.onChange(draw);
feed.now();
