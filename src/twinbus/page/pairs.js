// Paired namespaces: what their clients have reported, and the backlog queues that are here.

import { card, command, condition, el, empty, page, Redrawn, table, tablePanel } from "./dom.js";
import { plural, strange, time, visible, whole } from "./format.js";
import { address } from "./routes.js";

/** How a state of a pair's entity looks; any but one means that sends do not go straight home. */
function healthOf(state) {
  return state === "healthy" ? "up" : "slow";
}

function depth(backlog) {
  return backlog.reduce((sum, queue) => sum + queue.active, 0);
}

/** Pairs and backlog with the ages left out: these change all the time, and say nothing new. */
function told(state) {
  const pairs = state.pairs.map(({ age_s, reported, ...pair }) => ({
    ...pair,
    reported: Date.parse(reported),
  }));
  pairs.sort((one, other) => one.client.localeCompare(other.client)); // whoever has reported last
  return [pairs, state.backlog];
}

export function pairsCard() {
  const { node, body } = card("Pairs", "#/pairs");
  const drawn = new Redrawn(body, (pairs, backlog) => {
    if (pairs.length === 0 && backlog.length === 0)
      return [el("p", { class: "muted" }, "No paired client has reported.")];
    return [
      el(
        "ul",
        { class: "lines" },
        pairs.slice(0, 3).map((pair) => {
          const unwell = pair.entities.filter((entity) => healthOf(entity.state) !== "up");
          return el(
            "li",
            {},
            condition(unwell.length ? "slow" : "up", visible(pair.client)),
            el("span", { class: "muted" }, visible(unwell[0]?.state ?? "healthy")),
          );
        }),
        el(
          "li",
          { class: "strong" },
          el("span", {}, "Backlog"),
          el("span", { class: "backlog-depth" }, plural(depth(backlog), "message")),
        ),
      ),
    ];
  });
  return { node, update: (state) => drawn.update(...told(state)) };
}

export function pairsView(bus) {
  const pairs = el("div");
  const backlog = el("div");
  const drawnPairs = new Redrawn(pairs, (all) =>
    all.length === 0 ? [noPairs()] : all.map(pairPanel),
  );
  const drawnBacklog = new Redrawn(backlog, (all) => backlogPanel(bus, all));
  const node = page(
    "Pairs",
    "A paired client sends to its primary namespace and, while an entity there fails, to backlog queues in its secondary. Later, messages move from there to the primary by themselves.",
    pairs,
    backlog,
  );
  return {
    title: "Pairs",
    node,
    update(state) {
      const [all, queues] = told(state);
      drawnPairs.update(all);
      drawnBacklog.update(queues);
    },
  };
}

function noPairs() {
  return el(
    "section",
    { class: "panel" },
    empty(
      "No paired client has reported in the last minute.",
      "Pair an application with two connection strings, and it appears here:",
      command("PairedServiceBusClient.from_connection_strings(PRIMARY, SECONDARY)"),
      "Clients report by themselves, at every event and every 10 s.",
    ),
  );
}

function pairPanel(pair) {
  const entities = table(
    `Entities of ${visible(pair.client)}`,
    [
      ["Entity"],
      ["State"],
      ["Since"],
      ["To primary", "number"],
      ["To backlog", "number"],
      ["Last error", "wrapping"],
    ],
    pair.entities.map((entity) => [
      strange(entity.name),
      [
        condition(healthOf(entity.state), visible(entity.state)),
        entity.forced ? el("span", { class: "chip" }, "forced") : "",
      ],
      time(entity.since ? Date.parse(entity.since) : null),
      whole(entity.sent_to_primary),
      whole(entity.sent_to_backlog),
      entity.last_error ? strange(entity.last_error) : "none",
    ]),
  );
  return el(
    "section",
    { class: "panel" },
    el(
      "div",
      { class: "panel-head" },
      el("h2", {}, strange(pair.client)),
      el(
        "span",
        { class: "muted" },
        "reported ",
        time(pair.reported),
        pair.syphon_running ? ", syphon running" : "",
      ),
    ),
    el(
      "p",
      { class: "pair-route" },
      el("span", { class: "end in" }, strange(pair.primary)),
      el("span", { "aria-label": "fails over to", class: "way" }, "⇢"),
      el("span", { class: "end out" }, strange(pair.secondary)),
    ),
    pair.fault ? el("p", { class: "warning" }, strange(pair.fault)) : null,
    el("div", { class: "table-frame" }, entities),
    syphonTable(pair),
  );
}

/** What a client's syphon has brought home, for each backlog queue that it knows of. */
function syphonTable(pair) {
  if (!pair.backlog_queues?.length) return null;
  const rows = table(
    `Backlog queues of ${visible(pair.client)}`,
    [
      ["Backlog queue"],
      ["Accepts sends"],
      ["Moved", "number"],
      ["Dead-lettered", "number"],
      ["Held", "number"],
      ["Other primaries'", "wrapping"],
    ],
    pair.backlog_queues.map((queue) => [
      strange(queue.queue),
      queue.in_rotation ? "yes" : "no",
      whole(queue.moved),
      whole(queue.dead_lettered),
      whole(queue.held),
      strangers(queue),
    ]),
  );
  return el("div", { class: "table-frame second" }, rows);
}

/** Messages that are not this primary's: left where they are, and whose they are. */
function strangers(queue) {
  if (!queue.strangers) return "none";
  const named = queue.strangers_of.map(({ primary, count }) =>
    el(
      "li",
      {},
      `${whole(count)} of `,
      primary ? strange(primary) : el("span", { class: "muted" }, "nobody knows whom"),
    ),
  );
  return [
    condition("slow", `${plural(queue.strangers, "message")} left`),
    el("ul", { class: "lines strangers" }, named),
  ];
}

function backlogPanel(bus, queues) {
  if (queues.length === 0) return [];
  const link = (name) => {
    const path = `queues/${name.split("/").map(encodeURIComponent).join("/")}`;
    const href = address(path, { namespace: bus.wanted.namespace });
    return el("a", { href }, strange(name));
  };
  const rows = table(
    "Backlog queues",
    [["Backlog queue"], ["Of"], ["Waiting", "number"], ["Dead letters", "number"]],
    queues.map((queue) => [
      link(queue.queue),
      strange(queue.primary),
      whole(queue.active),
      whole(queue.dead_letter),
    ]),
  );
  const waiting = `${plural(depth(queues), "message")} waiting for their primary`;
  return [tablePanel("Backlog here", rows, el("span", { class: "muted" }, waiting))];
}
