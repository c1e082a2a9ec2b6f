// How an entity is made.  What the state says is for everybody who may look; the whole description
// and the rules are asked of the management API, which answers who may manage.

import { el, facts, replace, table, tablePanel } from "./dom.js";
import { bytes, strange, time, writtenDuration } from "./format.js";
import { askToSign } from "./signin.js";

const FOREVER = "P10675199DT2H48M5.4775807S";
const TYPE = "http://www.w3.org/2001/XMLSchema-instance";

// What is shown of a description, and nothing else of it: there are keys in it, too.
const SETTINGS = {
  LockDuration: "Lock duration",
  MaxDeliveryCount: "Max delivery count",
  DefaultMessageTimeToLive: "Default message time to live",
  DeadLetteringOnMessageExpiration: "Dead-letters on expiry",
  DeadLetteringOnFilterEvaluationExceptions: "Dead-letters on filter errors",
  RequiresDuplicateDetection: "Detects duplicates",
  DuplicateDetectionHistoryTimeWindow: "Duplicate detection window",
  MaxSizeInMegabytes: "Max size in MB",
  MaxMessageSizeInKilobytes: "Max message size in KB",
  AutoDeleteOnIdle: "Idle time before deletion",
  ForwardDeadLetteredMessagesTo: "Forwards dead letters to",
  EnableBatchedOperations: "Batched operations",
  SupportOrdering: "Supports ordering",
  UserMetadata: "User metadata",
};
const WORDS = { true: "yes", false: "no", [FOREVER]: "no limit" };
const DURATIONS = [
  "LockDuration",
  "DefaultMessageTimeToLive",
  "DuplicateDetectionHistoryTimeWindow",
  "AutoDeleteOnIdle",
];

export class Details {
  constructor(bus, entity) {
    this.bus = bus;
    this.entity = entity;
    this.known = el("section", { class: "panel padded" });
    this.rest = el("div", { class: "details" });
    this.node = el("div", { class: "details" }, this.known, this.rest);
    this.signed();
  }

  signed() {
    this.mayManage = this.bus.mayManage;
    if (this.mayManage) this.load();
    else
      replace(
        this.rest,
        el(
          "section",
          { class: "panel padded" },
          el("h2", {}, "All settings"),
          askToSign(
            this.bus,
            "Sign in with a key that has the Manage right to see all settings and rules.",
          ),
        ),
      );
  }

  update(entity) {
    if (this.mayManage !== this.bus.mayManage) this.signed();
    const now = JSON.stringify([
      entity.status,
      entity.availability,
      entity.accessed,
      entity.forward_to,
    ]);
    if (now === this.drawn) return;
    this.drawn = now;
    replace(
      this.known,
      el("h2", {}, "At a glance"),
      facts([
        ["Status", entity.status],
        ["Availability", entity.availability],
        ["Sessions", entity.requires_session ? "required" : "no"],
        ["Partitioned", entity.is_partitioned ? "yes" : "no"],
        ["Capacity", bytes(entity.max_size_bytes)],
        ["Forwards to", entity.forward_to ? strange(entity.forward_to) : null],
        ["Created", time(Date.parse(entity.created))],
        ["Last used", time(entity.accessed ? Date.parse(entity.accessed) : null)],
      ]),
    );
  }

  async load() {
    const { path, kind } = this.entity;
    try {
      const parts = [settingsPanel(parse(await this.bus.managed(path)))];
      if (kind === "subscription")
        parts.push(rulesPanel(parse(await this.bus.managed(`${path}/Rules`))));
      replace(this.rest, parts);
    } catch (error) {
      replace(
        this.rest,
        el("section", { class: "panel padded" }, el("p", { class: "problem" }, error.message)),
      );
    }
  }
}

/** XML as a document of its own, which nothing of is ever put into the page but texts. */
function parse(text) {
  return new DOMParser().parseFromString(text, "application/xml");
}

function textOf(node, name) {
  return node.getElementsByTagNameNS("*", name)[0]?.textContent ?? null;
}

function settingsPanel(document) {
  const shown = Object.entries(SETTINGS).map(([name, label]) => {
    const text = textOf(document, name);
    if (!text) return [label, null];
    return [
      label,
      strange(WORDS[text] ?? (DURATIONS.includes(name) ? writtenDuration(text) : text)),
    ];
  });
  return el("section", { class: "panel padded" }, el("h2", {}, "All settings"), facts(shown));
}

function rulesPanel(document) {
  const rules = [...document.getElementsByTagNameNS("*", "RuleDescription")];
  const rows = rules.map((rule) => {
    const [filter] = rule.getElementsByTagNameNS("*", "Filter");
    const [action] = rule.getElementsByTagNameNS("*", "Action");
    const done = action ? textOf(action, "SqlExpression") : null;
    return [
      strange(textOf(rule, "Name")),
      el("code", {}, strange(filterText(filter))),
      done ? el("code", {}, strange(done)) : "none",
    ];
  });
  const columns = [["Rule"], ["Filter", "wrapping"], ["Action", "wrapping"]];
  return tablePanel("Rules", table("Rules", columns, rows));
}

/** SQL as it is written; of a correlation filter, what must be equal. */
function filterText(filter) {
  const kind = filter.getAttributeNS(TYPE, "type");
  if (kind !== "CorrelationFilter") return textOf(filter, "SqlExpression") ?? kind;
  const own = [...filter.children]
    .filter((each) => each.localName !== "Properties")
    .map((each) => `${each.localName} = '${each.textContent}'`);
  const pairs = [...filter.getElementsByTagNameNS("*", "KeyValueOfstringanyType")].map(
    (each) => `${textOf(each, "Key")} = '${textOf(each, "Value")}'`,
  );
  return [...own, ...pairs].join(" AND ");
}
