// What the bus runs on: the server itself, broker processes, stores and their disks.

import { card, condition, el, facts, Redrawn, table } from "./dom.js";
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

export function machineView() {
  const server = el("div");
  const brokers = table("Brokers", [
    ["Broker"],
    ["State"],
    ["Process", "number"],
    ["Restarts", "number"],
    ["Lag", "number"],
    ["CPU", "number"],
    ["Memory", "number"],
    ["Trouble"],
  ]);
  const stores = table("Stores", [
    ["Store"],
    ["Health"],
    ["Broker", "number"],
    ["Free on disk", "number"],
    ["Not yet durable", "number"],
    ["Oldest commit", "number"],
    ["Journal"],
    ["Trouble"],
  ]);
  const throttled = el("div");
  const parts = [
    [new Redrawn(server, serverFacts), (state) => [state.server]],
    [new Redrawn(brokers.tBodies[0], (all) => all.map(brokerRow)), (state) => [state.brokers]],
    [new Redrawn(stores.tBodies[0], (all) => all.map(storeRow)), (state) => [state.stores]],
    [
      new Redrawn(throttled, (all) =>
        all.map((text) => el("p", { class: "warning" }, visible(text))),
      ),
      (state) => [state.throttled],
    ],
  ];
  const node = el(
    "div",
    { class: "page" },
    el("h1", {}, "Brokers and stores"),
    el(
      "p",
      { class: "lead" },
      "Broker processes run stores; a store keeps messages in one directory. One that is slow or down takes only its own partitions with it.",
    ),
    throttled,
    el("section", { class: "panel padded" }, el("h2", {}, "Server"), server),
    el(
      "section",
      { class: "panel" },
      el("div", { class: "panel-head" }, el("h2", {}, "Brokers")),
      el("div", { class: "table-frame" }, brokers),
    ),
    el(
      "section",
      { class: "panel" },
      el("div", { class: "panel-head" }, el("h2", {}, "Stores")),
      el("div", { class: "table-frame" }, stores),
    ),
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
  return el(
    "tr",
    {},
    el("th", { scope: "row" }, `Broker ${broker.broker}`),
    el("td", {}, condition(broker.state)),
    el("td", { class: "number plain" }, broker.pid ?? "–"),
    el("td", { class: "number" }, whole(broker.restarts)),
    el("td", { class: "number" }, `${whole(broker.lag_ms)} ms`),
    el("td", { class: "number" }, cpu(broker.cpu_share)),
    el("td", { class: "number" }, bytes(broker.memory_bytes)),
    el("td", {}, visible(broker.trouble || "none")),
  );
}

function storeRow(store) {
  return el(
    "tr",
    {},
    el("th", { scope: "row" }, `Store ${store.store}`),
    el("td", {}, condition(store.health)),
    el("td", { class: "number" }, store.broker < 0 ? "none" : store.broker),
    el("td", { class: "number" }, bytes(store.disk_free_bytes)),
    el("td", { class: "number" }, bytes(store.pending_bytes)),
    el("td", { class: "number" }, duration(store.commit_age_ms / 1000)),
    el("td", {}, store.is_journalled ? "takes sends" : "not in use"),
    el("td", {}, visible(store.trouble || "none")),
  );
}
