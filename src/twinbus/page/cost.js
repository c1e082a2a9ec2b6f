// What the metered operations of this month would come to on Azure.

import { card, el, facts, page, Redrawn, row, table, tablePanel } from "./dom.js";
import { money, whole } from "./format.js";

export function costCard() {
  const { node, body } = card("Cost this month, on Azure", "#/cost");
  const drawn = new Redrawn(body, (cost) => {
    if (!cost) return [el("p", { class: "muted" }, "Nothing is metered.")];
    return [
      el(
        "div",
        { class: "price-line" },
        el("p", { class: "price" }, money(cost.total, cost.currency)),
        el("p", { class: "muted" }, `${whole(cost.units)} units`),
      ),
    ];
  });
  return { node, update: (state) => drawn.update(state.cost) };
}

export function costView() {
  const body = el("div");
  const drawn = new Redrawn(body, (cost) =>
    cost ? bill(cost) : [el("p", { class: "empty" }, "Nothing is metered.")],
  );
  const lead = [
    "twinbus itself costs nothing. This is what the same operations would cost in Azure's standard tier, this month so far. For complete bills, run ",
    el("code", {}, "twinbus cost show"),
    ".",
  ];
  const node = page("Cost", lead, body);
  return { title: "Cost", node, update: (state) => drawn.update(state.cost) };
}

const COLUMNS = [
  ["Kind"],
  ["Operations", "number"],
  ["Without a message", "number"],
  ["Units of 64 KiB", "number"],
];

function bill(cost) {
  const rows = table(
    "Operations of this month",
    COLUMNS,
    cost.operations.map(({ kind, operations, empty, units }) => [
      kind,
      whole(operations),
      whole(empty),
      whole(units),
    ]),
  );
  rows.append(el("tfoot", {}, row(COLUMNS, ["all", "", "", whole(cost.units)])));
  return [
    el(
      "section",
      { class: "panel padded" },
      el("p", { class: "price large" }, money(cost.total, cost.currency)),
      facts([
        ["Month", cost.month],
        ["Base charge", money(cost.base, cost.currency)],
        ["Operations beyond it", money(cost.operations_cost, cost.currency)],
        ["Units for pairing", whole(cost.pairing_units)],
        ["Prices as of", cost.prices_as_of],
      ]),
      cost.is_complete
        ? null
        : el("p", { class: "warning" }, "This month's usage is still loading; the numbers will grow."),
    ),
    tablePanel("Operations", rows),
    el(
      "p",
      { class: "muted" },
      "Prices vary by region and over time: check the current price list.",
    ),
  ];
}
