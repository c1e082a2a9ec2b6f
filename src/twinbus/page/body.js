// Looks at the body of a message: as text, as JSON set in lines, or as bytes.

import { el, replace } from "./dom.js";
import { bytes, visible } from "./format.js";

const BYTES_A_LINE = 16;
const HEX_BYTES_MAX = 16_384;
const JSON_CHARACTERS_MAX = 200_000;
const DEPTH_MAX = 100;
const SHORT_CHARACTERS = 60;
const OPENERS = new Set(["{", "["]);
const CLOSERS = new Set(["}", "]"]);

/** The ways in which a body can be shown, the best first: `[name, () => text]`. */
export function waysToShow(body) {
  if (body.kind === "none") return [];
  if (body.kind === "hex") {
    const raw = Uint8Array.from(body.text.match(/../g) ?? [], (pair) => parseInt(pair, 16));
    return [
      ["Bytes", () => dump(raw)],
      ["Text", () => new TextDecoder().decode(raw)],
    ];
  }
  const ways = [
    ["Text", () => body.text],
    ["Bytes", () => dump(new TextEncoder().encode(body.text))],
  ];
  const pretty = asJson(body.text);
  return pretty === null ? ways : [["JSON", () => pretty], ...ways];
}

/** Set in lines, if it is JSON and no mere number or word. */
function asJson(text) {
  if (text.length > JSON_CHARACTERS_MAX || !/^\s*[[{]/.test(text)) return null;
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  return indented(text);
}

/**
 * JSON in lines without reading its values: numbers keep all their digits, which a browser's
 * own numbers would not.  What is short stays on one line.
 */
function indented(text) {
  const pieces = text.match(/"[^"\\]*(?:\\.[^"\\]*)*"|[{}[\],:]|[^\s{}[\],:"]+/g) ?? [];
  let depth = 0;
  let out = "";
  const line = () => `\n${"  ".repeat(depth)}`;
  for (let at = 0; at < pieces.length; at += 1) {
    const piece = pieces[at];
    const mayBeShort = OPENERS.has(piece) && (at > 0 || CLOSERS.has(pieces[1]));
    const short = mayBeShort ? shortPart(pieces, at) : null;
    if (short) {
      out += short.text;
      at = short.end;
    } else if (OPENERS.has(piece)) {
      depth += 1;
      if (depth > DEPTH_MAX) return null; // set in lines, ten thousand brackets would fill a disk
      out += piece + line();
    } else if (CLOSERS.has(piece)) {
      depth -= 1;
      out += line() + piece;
    } else if (piece === ",") out += piece + line();
    else if (piece === ":") out += ": ";
    else out += piece;
  }
  return out;
}

/** The object or list that begins here, on one line; null if that would be long. */
function shortPart(pieces, start) {
  let depth = 0;
  let text = "";
  for (let at = start; at < pieces.length && text.length <= SHORT_CHARACTERS; at += 1) {
    const piece = pieces[at];
    depth += Number(OPENERS.has(piece)) - Number(CLOSERS.has(piece));
    text += piece === "," || piece === ":" ? `${piece} ` : piece;
    if (depth === 0) return text.length <= SHORT_CHARACTERS ? { text, end: at } : null;
  }
  return null;
}

/** Bytes as people read them: where, which, and what they would be as letters. */
function dump(raw) {
  const lines = [];
  const end = Math.min(raw.length, HEX_BYTES_MAX);
  for (let at = 0; at < end; at += BYTES_A_LINE) {
    const part = raw.subarray(at, Math.min(at + BYTES_A_LINE, end));
    const digits = Array.from(part, (byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const letters = Array.from(part, (byte) =>
      byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·",
    ).join("");
    lines.push(
      `${at.toString(16).padStart(6, "0")}  ${digits.padEnd(BYTES_A_LINE * 3)} ${letters}`,
    );
  }
  if (end < raw.length) lines.push(`… ${raw.length - end} more bytes`);
  return lines.join("\n");
}

/** The viewer: one way at a time, tabs for the others. */
export function bodyViewer(body) {
  const ways = waysToShow(body);
  const size = el(
    "span",
    { class: "muted" },
    body.is_truncated ? `the first 64 KiB of ${bytes(body.size_bytes)}` : bytes(body.size_bytes),
  );
  if (ways.length === 0) return el("p", { class: "muted" }, "This message has no body.");
  const text = el("pre", { class: "body-text", tabindex: 0, "aria-label": "Body of the message" });
  const buttons = ways.map(([name, make]) => {
    const button = el("button", { type: "button", class: "tab", "aria-pressed": "false" }, name);
    button.addEventListener("click", () => show(button, make));
    return button;
  });
  const show = (chosen, make) => {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button === chosen));
    replace(text, visible(make().replaceAll("\r\n", "\n")));
  };
  show(buttons[0], ways[0][1]);
  const kind = body.kind === "value" ? el("span", { class: "chip" }, "AMQP value") : null;
  return el(
    "div",
    { class: "body-viewer" },
    el(
      "div",
      { class: "body-head" },
      el("div", { class: "tabs", role: "group", "aria-label": "Show the body as" }, buttons),
      kind,
      size,
    ),
    text,
  );
}
