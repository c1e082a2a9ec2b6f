// Numbers, sizes and times for people, and texts of strangers made harmless to look at.

import { el, setAttribute, setText } from "./dom.js";

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const ONE_DIGIT = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const SIZES = ["B", "KiB", "MiB", "GiB", "TiB"];
const DASH = "–";

// Controls, marks of direction and invisible letters: with them a text can look like another one.
const DECEPTIVE =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;

export function whole(value) {
  return value === null || value === undefined ? DASH : WHOLE.format(value);
}

/** Messages a second: a digit behind the point only where it says something. */
export function rate(value) {
  if (value === null || value === undefined) return DASH;
  if (value > 0 && value < 0.05) return "<0.1";
  return value < 10 ? ONE_DIGIT.format(value) : WHOLE.format(value);
}

export function bytes(value) {
  if (value === null || value === undefined) return DASH;
  let size = value;
  let unit = 0;
  while (size >= 1024 && unit < SIZES.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit === 0 || size >= 100 ? WHOLE.format(size) : ONE_DIGIT.format(size)} ${SIZES[unit]}`;
}

export function money(value, currency) {
  return `${Number(value).toFixed(2)} ${currency}`;
}

/** A duration in seconds, in its two largest units. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return DASH;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const parts = [
    [86400, "d"],
    [3600, "h"],
    [60, "min"],
    [1, "s"],
  ];
  const first = parts.findIndex(([size]) => seconds >= size);
  const [size, unit] = parts[first];
  const head = `${Math.floor(seconds / size)} ${unit}`;
  const [nextSize, nextUnit] = parts[Math.min(first + 1, parts.length - 1)];
  const rest = Math.floor((seconds % size) / nextSize);
  return rest > 0 && nextSize < size ? `${head} ${rest} ${nextUnit}` : head;
}

const ISO_DURATION = /^P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:([\d.]+)S)?)?$/;

/** A duration as Service Bus writes it (`PT1M30S`), for people; any other text as it is. */
export function writtenDuration(text) {
  const [, days = 0, hours = 0, minutes = 0, seconds = 0] = text.match(ISO_DURATION) ?? [];
  const all = Number(days) * 86400 + Number(hours) * 3600 + Number(minutes) * 60 + Number(seconds);
  return all > 0 ? duration(all) : text;
}

/** `3 min ago`, `in 2 h`. */
export function relative(utcMs, nowMs = Date.now()) {
  const seconds = (nowMs - utcMs) / 1000;
  if (Math.abs(seconds) < 2) return "now";
  const [text] = duration(Math.abs(seconds)).match(/^\S+ \S+/);
  return seconds > 0 ? `${text} ago` : `in ${text}`;
}

/** The exact time, UTC. */
export function exact(utcMs) {
  return new Date(utcMs).toISOString().replace("T", " ");
}

/** A time as an element: relative, exact on hover; `refreshTimes` keeps it true. */
export function time(utcMs) {
  if (utcMs === null || utcMs === undefined) return el("span", {}, DASH);
  const iso = new Date(utcMs).toISOString();
  return el("time", { datetime: iso, title: exact(utcMs), "data-ms": utcMs }, relative(utcMs));
}

export function setTime(node, utcMs) {
  setAttribute(node, "datetime", new Date(utcMs).toISOString());
  setAttribute(node, "title", exact(utcMs));
  setAttribute(node, "data-ms", utcMs);
  setText(node, relative(utcMs));
}

export function refreshTimes(root) {
  for (const node of root.querySelectorAll("time[data-ms]")) {
    setText(node, relative(Number(node.dataset.ms)));
  }
}

/** A text of a stranger: what cannot be seen is spelled out. */
export function visible(text) {
  return String(text).replace(DECEPTIVE, (letter) => {
    const code = letter.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    return `⟨U+${code}⟩`;
  });
}

/** Such a text as an element of its own, so that its direction ends with it. */
export function strange(text, classes = null) {
  return el("bdi", { class: classes }, visible(text));
}

export function plural(count, one, many = `${one}s`) {
  return `${whole(count)} ${count === 1 ? one : many}`;
}
