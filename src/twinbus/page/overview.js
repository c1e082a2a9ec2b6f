// Everything at a glance: the flow through the namespace, its entities, and beside them what the
// bus runs on, its pairs, the faults in force and what it has cost.

import { costCard } from "./cost.js";
import { command, el, empty, setText } from "./dom.js";
import { EntityTable } from "./entities.js";
import { faultsCard } from "./faults.js";
import { bytes, rate, whole } from "./format.js";
import { machineCard } from "./machine.js";
import { pairsCard } from "./pairs.js";
import { Sparkline } from "./sparkline.js";

const FIGURES = [
  ["active", "Active messages", (totals) => whole(totals.active)],
  ["dead", "Dead letters", (totals) => whole(totals.dead_letter + totals.transfer_dead_letter)],
  ["scheduled", "Scheduled", (totals) => whole(totals.scheduled)],
  ["deferred", "Deferred", (totals) => whole(totals.deferred)],
  ["size", "Stored", (totals) => bytes(totals.size_bytes)],
];

export function overviewView(bus) {
  const flow = new Flow(bus);
  const table = new EntityTable(bus);
  const start = startHere();
  start.hidden = true;
  const cards = [faultsCard(bus), pairsCard(bus), machineCard(bus), costCard(bus)];
  const node = el(
    "div",
    { class: "overview" },
    el("h1", { class: "unseen" }, "Overview"),
    flow.node,
    el(
      "div",
      { class: "columns" },
      el("div", { class: "column-main" }, start, table.node),
      el(
        "aside",
        { class: "column-side", "aria-label": "State of the bus" },
        cards.map((card) => card.node),
      ),
    ),
  );
  return {
    title: "",
    node,
    update(state) {
      const isEmpty = state.entities.length === 0 && !bus.wanted.entities;
      start.hidden = !isEmpty;
      table.node.hidden = isEmpty;
      flow.update(state);
      table.update(state);
      for (const card of cards) card.update(state);
    },
    escape() {
      if (table.clearFilter()) table.filter.focus();
    },
    close() {
      bus.want({ entities: "" });
    },
  };
}

/** What comes in and goes out, as two numbers and two lines, and the sums beside them. */
class Flow {
  constructor(bus) {
    this.bus = bus;
    this.namespace = null;
    this.place = el("figure", { class: "flow-lines" });
    this.caption = el("figcaption");
    this.incoming = el("b", { class: "flow-number in" }, "–");
    this.outgoing = el("b", { class: "flow-number out" }, "–");
    this.refused = el("p", { class: "flow-refused" });
    this.figures = FIGURES.map(([name, text, value]) => ({
      value,
      node: el("dd", { class: name }, "–"),
      text,
    }));
    this.node = el(
      "section",
      { class: "panel flow", "aria-label": "Flow through the namespace" },
      el(
        "div",
        { class: "flow-rates" },
        el("p", {}, this.incoming, el("span", {}, "in per second")),
        el("p", {}, this.outgoing, el("span", {}, "out per second")),
        this.refused,
      ),
      this.place,
      el(
        "dl",
        { class: "figures" },
        this.figures.map(({ text, node }) => el("div", {}, el("dt", {}, text), node)),
      ),
    );
  }

  update(state) {
    if (state.namespace !== this.namespace) {
      this.namespace = state.namespace;
      this.line = new Sparkline(this.bus.history(state.namespace), "namespace", 520, 54);
      this.place.replaceChildren(this.line.node, this.caption);
    }
    const { totals } = state;
    setText(this.incoming, rate(totals.rates.incoming));
    setText(this.outgoing, rate(totals.rates.outgoing));
    const refused = [
      ["throttled", totals.rates.throttled],
      ["errors", totals.rates.errors],
    ].filter(([, many]) => many > 0);
    setText(
      this.refused,
      refused.map(([what, many]) => `${rate(many)} ${what} a second`).join(", "),
    );
    for (const { node, value } of this.figures) {
      const text = value(totals);
      setText(node, text);
      node.classList.toggle("is-none", text === "0" || text === "0 B");
    }
    this.line.draw();
    const { most } = this.line;
    setText(
      this.caption,
      most > 0 ? `the last two minutes, up to ${rate(most)} per second` : "the last two minutes",
    );
  }
}

function startHere() {
  const host = location.host;
  return el(
    "section",
    { class: "panel start", "aria-labelledby": "start-title" },
    empty(
      "No queues or topics yet.",
      el("p", { id: "start-title" }, "Create the first one; it appears here by itself."),
      command('eval "$(twinbus env --data data)"   # once in a shell'),
      command("twinbus queue create orders"),
      command("twinbus send orders 'one coffee'"),
      el(
        "p",
        {},
        "Applications on the official SDKs connect with the connection string that ",
        el("code", {}, "twinbus serve"),
        " printed:",
      ),
      command(
        `Endpoint=sb://${host};SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=…;UseDevelopmentEmulator=true;`,
      ),
    ),
  );
}
