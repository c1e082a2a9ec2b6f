// What has happened, said once: at the edge of the page, and to screen readers.

import { el } from "./dom.js";

const SHOWN_MS = 6000;
const COUNT_MAX = 4;

/** Say something; an error stays until it is closed. */
export function notice(text, kind = "done") {
  const place = document.getElementById(kind === "error" ? "errors" : "notices");
  const close = el("button", { type: "button", class: "quiet small" }, "Close");
  const shown = el("div", { class: `notice ${kind}` }, el("p", {}, text), close);
  close.addEventListener("click", () => shown.remove());
  place.append(shown);
  while (place.children.length > COUNT_MAX) place.firstChild.remove();
  if (kind !== "error") setTimeout(() => shown.remove(), SHOWN_MS);
}

/** Take away the newest error, if there is one. */
export function dismissError() {
  const place = document.getElementById("errors");
  if (!place.lastChild) return false;
  place.lastChild.remove();
  return true;
}
