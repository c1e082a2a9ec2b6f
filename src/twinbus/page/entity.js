// One queue, topic or subscription: its numbers, its partitions, its messages and its settings.

import { Details } from "./details.js";
import { Children, el, empty, row, setAttribute, setText, table } from "./dom.js";
import { chips, glyph, remarks } from "./entities.js";
import { bytes, rate, strange, time, whole } from "./format.js";
import { MessageBrowser } from "./messages.js";
import { PartitionStrip, summary } from "./partitions.js";
import { address, entityRoute } from "./routes.js";
import { Sparkline } from "./sparkline.js";

const TABS = {
  messages: [
    "Messages",
    (entity) => entity.counts.active + entity.counts.deferred + entity.counts.scheduled,
  ],
  "dead-letters": ["Dead letters", (entity) => entity.counts.dead_letter],
  transfer: ["Transfer dead letters", (entity) => entity.counts.transfer_dead_letter],
  subscriptions: ["Subscriptions", (entity) => entity.subscriptions],
  details: ["Settings", () => null],
};

function tabsOf(entity) {
  if (entity.kind === "topic") return ["subscriptions", "details"];
  return entity.counts.transfer_dead_letter > 0
    ? ["messages", "dead-letters", "transfer", "details"]
    : ["messages", "dead-letters", "details"];
}

export function entityView(bus, route) {
  const node = el("div", { class: "page entity" });
  let face = null;
  let current = route;
  const show = (state) => {
    const entity = bus.entity(current.path);
    if (entity && !face) {
      face = new EntityFace(bus, entity);
      node.replaceChildren(face.node);
    }
    if (entity) {
      face.update(entity, current);
    } else if (state.is_truncated && bus.wanted.entities !== current.path) {
      bus.want({ entities: current.path }); // it may be beyond the part of the list that came
    } else {
      face = null;
      node.replaceChildren(el("h1", {}, strange(current.path)), missing(current));
    }
  };
  return {
    title: route.path,
    node,
    update: show,
    route(next) {
      current = next;
      if (bus.state) show(bus.state);
    },
    signed: () => face?.part?.signed?.(),
    escape: () => face?.part?.closeMessage?.(),
    close: () => bus.want({ entities: "" }),
  };
}

function missing(route) {
  const back = address("", { namespace: route.namespace });
  return el(
    "section",
    { class: "panel" },
    empty(
      "Entity not found.",
      el("p", {}, strange(route.path), " does not exist: it was deleted, or never created."),
      el("p", {}, el("a", { href: back }, "Go to the overview")),
    ),
  );
}

class EntityFace {
  constructor(bus, entity) {
    this.bus = bus;
    this.show = null;
    this.part = null;
    this.chips = chips();
    this.line = new Sparkline(bus.history(entity.key), entity.kind, 360, 56);
    this.strip = new PartitionStrip();
    this.partitions = el("p", { class: "muted" });
    this.numbers = figures(entity).map(([text, value, kind = ""]) => ({
      value,
      node: el("dd", { class: kind }),
      text,
    }));
    this.tabs = el("nav", { class: "tabs", "aria-label": "Entity views" });
    this.links = new Children(
      this.tabs,
      (name) => name,
      (name) => tab(name),
    );
    this.place = el("div");
    const strips = entity.is_partitioned
      ? el("div", { class: "entity-partitions" }, this.strip.node, this.partitions)
      : null;
    this.node = el(
      "div",
      {},
      el("nav", { class: "crumbs", "aria-label": "Breadcrumb" }, crumbs(entity)),
      el(
        "div",
        { class: "entity-head" },
        el(
          "h1",
          {},
          glyph(entity.kind),
          strange(entity.kind === "subscription" ? entity.name : entity.path),
        ),
        this.chips.node,
      ),
      el(
        "section",
        { class: "panel flow entity-flow", "aria-label": "Numbers" },
        el(
          "dl",
          { class: "figures" },
          this.numbers.map(({ text, node }) => el("div", {}, el("dt", {}, text), node)),
        ),
        el("div", { class: "flow-lines" }, this.line.node),
        strips,
      ),
      this.tabs,
      this.place,
    );
  }

  update(entity, route) {
    this.chips.update(remarks(entity));
    for (const { node, value } of this.numbers) setText(node, value(entity));
    this.line.draw();
    if (entity.is_partitioned) {
      this.strip.update(entity.partitions);
      setText(this.partitions, summary(entity.partitions));
    }
    const names = tabsOf(entity);
    const show = names.includes(route.show) ? route.show : names[0];
    this.links.update(names);
    for (const [name, link] of this.links.made)
      link.describe(entity, name === show, name === names[0]);
    if (show !== this.show) this.open(entity, show);
    this.part.route?.(route);
    this.part.update(entity);
  }

  open(entity, show) {
    this.show = show;
    if (show === "details") this.part = new Details(this.bus, entity);
    else if (show === "subscriptions") this.part = new Subscriptions(this.bus);
    else this.part = new MessageBrowser(this.bus, entity, show);
    this.place.replaceChildren(this.part.node);
  }
}

function figures(entity) {
  const counts = [
    ["Active", ({ counts: { active } }) => whole(active)],
    ["Dead letters", ({ counts: { dead_letter } }) => whole(dead_letter)],
  ];
  const scheduled = [["Scheduled", ({ counts }) => whole(counts.scheduled)]];
  const deferred = [["Deferred", ({ counts }) => whole(counts.deferred)]];
  const incoming = [["In per second", ({ rates }) => rate(rates.incoming), "in"]];
  const outgoing = [["Out per second", ({ rates }) => rate(rates.outgoing), "out"]];
  const stored = [["Stored", ({ size_bytes }) => bytes(size_bytes)]];
  if (entity.kind === "topic") return [...incoming, ...scheduled, ...stored];
  if (entity.kind === "subscription")
    return [...outgoing, ...counts, ...deferred, ["Rules", ({ rules }) => whole(rules)]];
  return [...incoming, ...outgoing, ...counts, ...scheduled, ...deferred, ...stored];
}

function crumbs(entity) {
  const home = el(
    "a",
    { href: address("", { namespace: entity.isInDefault ? null : entity.namespace }) },
    "Overview",
  );
  if (entity.kind !== "subscription") return [home];
  const topic = { ...entity, kind: "topic", path: entity.topic };
  return [
    home,
    el("span", { "aria-hidden": "true" }, "/"),
    el("a", { href: entityRoute(topic) }, strange(entity.topic)),
  ];
}

function tab(name) {
  const count = el("span", { class: "count" });
  const node = el("a", { class: "tab", href: "#/" }, TABS[name][0], " ", count);
  return {
    node,
    update() {},
    describe(entity, isShown, isFirst) {
      setAttribute(node, "href", entityRoute(entity, { show: isFirst ? null : name }));
      setAttribute(node, "aria-current", isShown ? "page" : null);
      const many = TABS[name][1](entity);
      setText(count, many === null ? "" : whole(many));
      count.classList.toggle("bad", name !== "messages" && name !== "subscriptions" && many > 0);
    },
  };
}

const SUBSCRIPTION_COLUMNS = [
  ["Subscription"],
  ["Active", "number"],
  ["Dead letters", "number"],
  ["Out per second", "number"],
  ["Rules", "number"],
  ["Last used", "may-hide"],
];

/** Of a topic: its subscriptions, each with its counts. */
class Subscriptions {
  constructor(bus) {
    this.bus = bus;
    this.table = table("Subscriptions", SUBSCRIPTION_COLUMNS);
    this.rows = new Children(this.table.tBodies[0], (entity) => entity.key, subscriptionRow);
    this.none = empty(
      "No subscriptions yet.",
      "A topic without subscriptions drops its messages.",
      el("p", {}, el("code", {}, "twinbus subscription create TOPIC NAME")),
    );
    this.node = el(
      "section",
      { class: "panel" },
      el("div", { class: "table-frame" }, this.table),
      this.none,
    );
  }

  update(topic) {
    const name = topic.path.toLowerCase();
    const found = this.bus.state.entities.filter((entity) => entity.topic?.toLowerCase() === name);
    this.rows.update(found);
    this.none.hidden = found.length > 0;
    this.table.hidden = found.length === 0;
  }
}

function subscriptionRow(entity) {
  const link = el("a", { href: entityRoute(entity) }, strange(entity.name));
  const marks = chips();
  const node = row(SUBSCRIPTION_COLUMNS, [[link, marks.node], ...Array(5).fill("")]);
  return {
    node,
    update(now) {
      const [, active, dead, outgoing, rules, accessed] = node.cells;
      marks.update(remarks(now));
      setText(active, whole(now.counts.active));
      setText(dead, whole(now.counts.dead_letter));
      setText(outgoing, rate(now.rates.outgoing));
      setText(rules, whole(now.rules));
      if (accessed.dataset.of !== String(now.accessed)) {
        accessed.dataset.of = now.accessed;
        accessed.replaceChildren(time(now.accessed ? Date.parse(now.accessed) : null));
      }
    },
  };
}
