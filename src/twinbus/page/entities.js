// The list of entities: counts, rates and partitions, filtered and sorted, kept up to date in
// place.  A topic's subscriptions stand under it.

import { Children, el, Redrawn, setAttribute, setText, svg } from "./dom.js";
import { bytes, plural, rate, strange, visible, whole } from "./format.js";
import { keepOneInTabOrder, moveByArrows } from "./keys.js";
import { PartitionStrip } from "./partitions.js";
import { entityRoute } from "./routes.js";
import { Sparkline } from "./sparkline.js";

const NAME_LINK = "a.entity-name";

// Heading, class, and what to sort by; the server's own order groups subscriptions with topics.
const COLUMNS = [
  ["Entity", "", null],
  ["Active", "number", (entity) => entity.counts.active],
  ["Dead", "number", (entity) => entity.counts.dead_letter + entity.counts.transfer_dead_letter],
  ["Scheduled", "number may-hide", (entity) => entity.counts.scheduled],
  ["In /s", "number rate", (entity) => entity.rates.incoming],
  ["Out /s", "number rate", (entity) => entity.rates.outgoing],
  ["Two minutes", "may-hide", null],
  ["Partitions", "may-hide", null],
  ["Size", "number for-wide", (entity) => entity.size_bytes],
];

const GLYPHS = {
  queue: ["M2 4h12", "M2 8h12", "M2 12h12"],
  topic: ["M2 8h5", "M7 8c3 0 2-4.5 7-4.5", "M7 8h7", "M7 8c3 0 2 4.5 7 4.5"],
  subscription: ["M3 2v6h4", "M7 8h7", "M11 5l3 3-3 3"],
};

/** A small drawing of what kind of entity it is, with its name for those who do not see it. */
export function glyph(kind) {
  return el(
    "span",
    { class: `glyph ${kind}`, title: kind },
    svg(
      "svg",
      { viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true" },
      GLYPHS[kind].map((d) => svg("path", { d })),
    ),
    el("span", { class: "unseen" }, `${kind} `),
  );
}

/** What is out of the ordinary with an entity, in words: `[text, kind of chip, why]`. */
export function remarks(entity) {
  const found = [];
  if (entity.status !== "Active") found.push([spaced(entity.status), "warn", ""]);
  if (entity.availability !== "Available") found.push([entity.availability, "bad", ""]);
  for (const [what, reasons] of Object.entries(entity.cannot)) {
    found.push([`cannot ${what}`, "bad", reasons.join("; ")]);
  }
  if (entity.backlog_of) found.push([`backlog of ${entity.backlog_of}`, "out", ""]);
  if (entity.requires_session) found.push(["sessions", "", ""]);
  if (entity.forward_to) found.push([`forwards to ${entity.forward_to}`, "", ""]);
  return found;
}

function spaced(status) {
  return status.replace(/(?<=[a-z])(?=[A-Z])/, " ").toLowerCase();
}

/** What is out of the ordinary with an entity, to be updated with `remarks`. */
export function chips() {
  return new Redrawn(el("span", { class: "chips" }), (found) =>
    found.map(([text, kind, why]) =>
      el("span", { class: `chip ${kind}`, title: why || null }, visible(text)),
    ),
  );
}

export class EntityTable {
  constructor(bus) {
    this.bus = bus;
    this.filterText = "";
    this.sortBy = null;
    this.body = el("tbody");
    this.rows = new Children(
      this.body,
      (entity) => entity.key,
      (entity) => new EntityRow(bus, entity),
    );
    this.filter = el("input", {
      type: "search",
      id: "filter",
      placeholder: "Filter by name",
      "data-filter": "",
      autocomplete: "off",
      spellcheck: "false",
      "aria-describedby": "filter-found",
      on: { input: () => this.refilter() },
    });
    this.found = el("span", { class: "muted", id: "filter-found", role: "status" });
    this.heads = COLUMNS.map(([text, kind, value]) => this.head(text, kind, value));
    this.table = el(
      "table",
      { class: "entities" },
      el("caption", { class: "unseen" }, "Entities of the namespace"),
      el("thead", {}, el("tr", {}, this.heads)),
      this.body,
    );
    this.node = el(
      "section",
      { class: "panel", "aria-labelledby": "entities-title" },
      el(
        "div",
        { class: "panel-head" },
        el("h2", { id: "entities-title" }, "Entities"),
        this.found,
        el(
          "div",
          { class: "filter" },
          el("label", { for: "filter", class: "unseen" }, "Filter by name"),
          this.filter,
          el("kbd", { "aria-hidden": "true" }, "/"),
        ),
      ),
      el("div", { class: "table-frame" }, this.table),
    );
    moveByArrows(this.body, NAME_LINK);
  }

  head(text, kind, value) {
    if (!value) return el("th", { scope: "col", class: kind }, text);
    const button = el(
      "button",
      { type: "button", class: "sorter", title: `Sort by ${text}` },
      text,
    );
    const head = el("th", { scope: "col", class: kind }, button);
    button.addEventListener("click", () => {
      this.sortBy = this.sortBy === value ? null : value;
      for (const each of this.heads)
        setAttribute(each, "aria-sort", each === head && this.sortBy ? "descending" : null);
      this.update(this.bus.state);
    });
    return head;
  }

  refilter() {
    this.filterText = this.filter.value.trim().toLowerCase();
    // Of more entities than a page holds, the server looks for those that begin so.
    if (this.bus.state?.is_truncated || this.bus.wanted.entities)
      this.bus.want({ entities: this.filterText });
    this.update(this.bus.state);
  }

  clearFilter() {
    if (!this.filter.value) return false;
    this.filter.value = "";
    this.refilter();
    return true;
  }

  update(state) {
    if (!state) return;
    let { entities } = state;
    if (this.sortBy)
      entities = [...entities].sort((one, other) => this.sortBy(other) - this.sortBy(one));
    this.table.classList.toggle("is-sorted", this.sortBy !== null);
    this.table.classList.toggle(
      "has-partitions",
      entities.some((entity) => entity.is_partitioned),
    );
    this.rows.update(entities);
    let count = 0;
    for (const entity of entities) {
      // Hidden, not taken away: a filter that is cleared shows a thousand rows at once.
      const isShown = entity.path.toLowerCase().includes(this.filterText);
      this.rows.made.get(entity.key).node.hidden = !isShown;
      count += Number(isShown);
    }
    keepOneInTabOrder(this.body, NAME_LINK);
    setText(this.found, this.summary(state, count));
  }

  summary(state, count) {
    if (this.filterText)
      return `${plural(count, "entity", "entities")} of ${whole(state.entities_matching)}`;
    const { queues, topics, subscriptions } = state.totals;
    const kinds = [
      [queues, "queue"],
      [topics, "topic"],
      [subscriptions, "subscription"],
    ];
    const text = kinds
      .filter(([many]) => many > 0)
      .map(([many, kind]) => plural(many, kind))
      .join(", ");
    return state.is_truncated
      ? `${text}; the first ${whole(count)} are shown; filter to see others`
      : text;
  }
}

class EntityRow {
  constructor(bus, entity) {
    this.link = el(
      "a",
      { class: "entity-name", href: entityRoute(entity), tabindex: -1 },
      strange(entity.kind === "subscription" ? entity.name : entity.path),
    );
    this.topic = el("span", { class: "of-topic" }, entity.topic ? strange(entity.topic) : "");
    this.chips = chips();
    this.dead = el("a", {
      class: "dead",
      href: entityRoute(entity, { show: "dead-letters" }),
      tabindex: -1,
    });
    this.line = new Sparkline(bus.history(entity.key), entity.kind);
    this.strip = null;
    this.cells = COLUMNS.slice(1).map(([, kind]) => el("td", { class: kind }));
    const [, dead, , , , line] = this.cells;
    dead.append(this.dead);
    line.append(this.line.node);
    this.node = el(
      "tr",
      { class: entity.kind },
      el(
        "th",
        { scope: "row" },
        el(
          "div",
          { class: "entity-cell" },
          glyph(entity.kind),
          el("span", {}, this.topic, this.link, this.chips.node),
        ),
      ),
      this.cells,
    );
    // The row is one large target for a mouse; the link in it is what the keyboard has.
    this.node.addEventListener("click", (event) => {
      if (!event.target.closest("a") && !getSelection().toString()) this.link.click();
    });
  }

  update(entity) {
    const [active, , scheduled, incoming, outgoing, , , size] = this.cells;
    const isTopic = entity.kind === "topic";
    const dead = entity.counts.dead_letter + entity.counts.transfer_dead_letter;
    setText(active, isTopic ? "" : whole(entity.counts.active));
    setText(this.dead, isTopic ? "" : whole(dead));
    setAttribute(this.dead, "data-some", dead > 0);
    setAttribute(this.dead, "aria-label", isTopic ? "none" : plural(dead, "dead letter"));
    setText(scheduled, whole(entity.counts.scheduled));
    setText(incoming, entity.kind === "subscription" ? "" : rate(entity.rates.incoming));
    setText(outgoing, isTopic ? "" : rate(entity.rates.outgoing));
    setAttribute(incoming, "data-some", entity.rates.incoming > 0);
    setAttribute(outgoing, "data-some", entity.rates.outgoing > 0);
    setText(size, bytes(entity.size_bytes));
    this.line.draw();
    if (entity.is_partitioned) this.showPartitions(entity.partitions);
    this.chips.update(remarks(entity));
  }

  showPartitions(partitions) {
    if (!this.strip) {
      this.strip = new PartitionStrip();
      this.cells[6].append(this.strip.node);
    }
    this.strip.update(partitions);
  }
}
