// What the bus runs on: the server itself, broker processes, stores and their disks.

import { card, condition, el, facts, page, Redrawn, row, table, tablePanel } from "./dom.js";
import { bytes, duration, time, visible, whole } from "./format.js";

export function machineCard() {
  const { node, body } = card("Brokers and stores", "#/machine");
  const drawn = new Redrawn(body, (brokers, stores, throttled) => [
    el(
      "ul",
      { class: "lines" },
      brokers.map((broker) =>
        line(
          `Broker ${broker.broker}`,
          broker.state,
          broker.state === "up" ? `${cpu(broker.cpu_share)} CPU` : broker.state,
        ),
      ),
      stores.map((store) =>
        line(
          `Store ${store.store}`,
          store.health,
          store.health === "up" ? `${store.free} free` : store.health,
        ),
      ),
    ),
    throttled.map((text) => el("p", { class: "warning" }, visible(text))),
  ]);
  return {
    node,
    update(state) {
      // Rounded before it is compared, so that a byte more or less draws nothing anew.
      const stores = state.stores.map(({ store, health, disk_free_bytes }) => ({
        store,
        health,
        free: bytes(disk_free_bytes),
      }));
      const brokers = state.brokers.map(({ broker, state: how, cpu_share }) => ({
        broker,
        state: how,
        cpu_share: Math.round((cpu_share ?? 0) * 100) / 100,
      }));
      drawn.update(brokers, stores, state.throttled);
    },
  };
}

function line(name, health, text) {
  return el("li", {}, condition(health, name), el("span", { class: "muted" }, visible(text)));
}

function cpu(share) {
  return share === null || share === undefined ? "–" : `${whole(share * 100)} %`;
}

const BROKER_COLUMNS = [
  ["Broker"],
  ["State"],
  ["Process", "number"],
  ["Restarts", "number"],
  ["Lag", "number"],
  ["CPU", "number"],
  ["Memory", "number"],
  ["Trouble"],
];
const STORE_COLUMNS = [
  ["Store"],
  ["Health"],
  ["Broker", "number"],
  ["Free on disk", "number"],
  ["Not yet durable", "number"],
  ["Oldest commit", "number"],
  ["Journal"],
  ["Trouble"],
];

const SURVIVAL_COLUMNS = [["Failure"], ["Sending"], ["What happens"], ["What helps"]];

export function machineView() {
  const server = el("div");
  const brokers = table("Brokers", BROKER_COLUMNS);
  const stores = table("Stores", STORE_COLUMNS);
  const survival = table("What this deployment survives", SURVIVAL_COLUMNS);
  const throttled = el("div");
  const parts = [
    [new Redrawn(server, serverFacts), (state) => [state.server]],
    [new Redrawn(brokers.tBodies[0], (all) => all.map(brokerRow)), (state) => [state.brokers]],
    [new Redrawn(stores.tBodies[0], (all) => all.map(storeRow)), (state) => [state.stores]],
    [
      new Redrawn(survival.tBodies[0], (all) => all.map(survivalRow)),
      (state) => [state.survives ?? []],
    ],
    [
      new Redrawn(throttled, (all) =>
        all.map((text) => el("p", { class: "warning" }, visible(text))),
      ),
      (state) => [state.throttled],
    ],
  ];
  const node = page(
    "Brokers and stores",
    "Broker processes run stores; a store keeps messages in one directory. If one of several is slow or down, only its own partitions are affected.",
    throttled,
    el("section", { class: "panel padded" }, el("h2", {}, "Server"), server),
    tablePanel("Brokers", brokers),
    tablePanel("Stores", stores),
    tablePanel("What this deployment survives", survival),
  );
  return {
    title: "Brokers and stores",
    node,
    update(state) {
      for (const [part, of] of parts) part.update(...of(state));
    },
  };
}

function serverFacts(server) {
  return [
    facts([
      ["Health", condition(server.status)],
      ["Version", `${server.version} (${server.build})`],
      ["Started", time(Date.parse(server.started))],
      ["Limits", server.profile],
      ["Connections", whole(server.connections)],
      ["CPU", cpu(server.cpu_share)],
      ["Memory", bytes(server.memory_bytes)],
      ["Lag", `${whole(server.lag_ms)} ms`],
    ]),
  ];
}

function brokerRow(broker) {
  return row(BROKER_COLUMNS, [
    `Broker ${broker.broker}`,
    condition(broker.state),
    broker.pid ?? "–",
    whole(broker.restarts),
    `${whole(broker.lag_ms)} ms`,
    cpu(broker.cpu_share),
    bytes(broker.memory_bytes),
    visible(broker.trouble || "none"),
  ]);
}

function storeRow(store) {
  return row(STORE_COLUMNS, [
    `Store ${store.store}`,
    condition(store.health),
    store.broker < 0 ? "none" : store.broker,
    bytes(store.disk_free_bytes),
    bytes(store.pending_bytes),
    duration(store.commit_age_ms / 1000),
    store.is_journalled ? "accepts sends" : "not in use",
    visible(store.trouble || "none"),
  ]);
}

function survivalRow({ failure, verdict, what, fix, beyond }) {
  const helps = [fix, beyond].filter((text) => text).join("; ");
  return row(SURVIVAL_COLUMNS, [failure, verdict, what, helps || "nothing needed"]);
}
