// One message, in full.

import { bodyViewer } from "./body.js";
import { button, el, facts, table } from "./dom.js";
import { bytes, exact, strange, time, whole } from "./format.js";

/** A time in full: relative, and the exact one beside it. */
function fullTime(text) {
  if (!text) return null;
  const utcMs = Date.parse(text);
  return el("span", {}, time(utcMs), el("span", { class: "muted" }, ` ${exact(utcMs)}`));
}

function maybe(text) {
  return text === null || text === undefined ? null : strange(text);
}

/** What is shown of a message; `actions` are buttons, `close` ends it. */
export function messagePanel(message, actions, close) {
  return el(
    "section",
    { class: "panel message", "aria-labelledby": "message-title" },
    el(
      "div",
      { class: "panel-head" },
      el("h2", { id: "message-title", tabindex: -1 }, `Message ${message.sequence_number}`),
      actions,
      button("Close", "quiet", close, { title: "Close (Esc)" }),
    ),
    el(
      "div",
      { class: "message-parts" },
      message.dead_letter ? reason(message.dead_letter) : null,
      bodyViewer(message.body),
      facts(
        [
          ["Message id", maybe(message.message_id)],
          ["Subject", maybe(message.subject)],
          ["Content type", maybe(message.content_type)],
          ["Session", maybe(message.session_id)],
          ["Partition key", maybe(message.partition_key)],
          ["Correlation id", maybe(message.correlation_id)],
          ["To", maybe(message.to)],
          ["Reply to", maybe(message.reply_to)],
          ["Reply to session", maybe(message.reply_to_session_id)],
          ["State", message.state],
          ["Deliveries", whole(message.delivery_count)],
          ["Enqueued", fullTime(message.enqueued)],
          ["Scheduled for", fullTime(message.scheduled)],
          ["Expires", fullTime(message.expires)],
          ["Size", bytes(message.size_bytes)],
        ],
        "facts narrow",
      ),
      properties(message.properties),
    ),
  );
}

function reason({ reason: text, description, source }) {
  return el(
    "div",
    { class: "dead-letter" },
    el("p", { class: "dead-letter-reason" }, text ? strange(text) : "no reason given"),
    description ? el("p", {}, strange(description)) : null,
    source ? el("p", { class: "muted" }, "from ", strange(source)) : null,
  );
}

function properties(all) {
  if (all.length === 0) return null;
  const rows = table(
    "Application properties",
    [["Application property"], ["Value", "wrapping"], ["Type", "muted"]],
    all.map(({ name, type, value }) => [strange(name), strange(value), type]),
    "properties",
  );
  return el("div", { class: "table-frame" }, rows);
}
