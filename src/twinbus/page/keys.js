// The keyboard: a few keys that work everywhere, arrows in lists, and a list of all of them.

import { el, replace } from "./dom.js";
import { dismissError } from "./notices.js";

const KEYS = [
  ["/", "Filter"],
  ["↑  ↓", "Move up or down in a list"],
  ["Home  End", "Go to the start or end of a list"],
  ["Enter", "Open the focused item"],
  ["Space", "Select a message"],
  ["Esc", "Close a message, a dialog or an error; clear the filter"],
  ["t", "Switch between light and dark"],
  ["?", "Show these shortcuts"],
];

/** Arrows, Home and End move the focus among the nodes of a list that match a selector. */
export function moveByArrows(list, selector) {
  list.addEventListener("keydown", (event) => {
    const nodes = reachable(list, selector);
    const at = nodes.indexOf(event.target.closest(selector));
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: nodes.length - 1 }[event.key];
    if (at < 0 || to === undefined || !nodes[to]) return;
    event.preventDefault();
    focusOnly(nodes, nodes[to]);
  });
}

/** One of a list takes part in the tab order, so that Tab leaves a list of thousands at once. */
function focusOnly(nodes, chosen) {
  for (const node of nodes) node.tabIndex = node === chosen ? 0 : -1;
  chosen.focus();
}

/** Those of a list that are not hidden; by their row, since asking for a layout is slow. */
function reachable(list, selector) {
  return [...list.querySelectorAll(selector)].filter((node) => !node.closest("[hidden]"));
}

/** After a list has changed: exactly one of it can be reached by Tab. */
export function keepOneInTabOrder(list, selector) {
  const nodes = reachable(list, selector);
  const chosen =
    nodes.find((node) => node === document.activeElement) ??
    nodes.find((node) => node.tabIndex === 0) ??
    nodes[0];
  for (const node of list.querySelectorAll(selector)) {
    const wanted = node === chosen ? 0 : -1;
    if (node.tabIndex !== wanted) node.tabIndex = wanted;
  }
}

export function startKeys(button, toggleTheme, closeView) {
  const dialog = document.getElementById("keys-dialog");
  replace(
    document.getElementById("keys-list"),
    KEYS.map(([key, meaning]) =>
      el(
        "div",
        {},
        el(
          "dt",
          {},
          key.split("  ").map((each) => el("kbd", {}, each)),
        ),
        el("dd", {}, meaning),
      ),
    ),
  );
  const show = () => dialog.showModal();
  button.addEventListener("click", show);
  document.getElementById("keys-close").addEventListener("click", () => dialog.close());

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const isOpen = document.querySelector("dialog[open]") !== null;
    if (event.key === "Escape" && !isOpen) {
      if (!dismissError()) closeView(event);
      return;
    }
    if (isOpen || isTyping(event.target)) return;
    if (event.key === "?") show();
    else if (event.key === "t") toggleTheme();
    else if (event.key === "/") {
      const filter = document.querySelector("[data-filter]");
      if (!filter) return;
      event.preventDefault();
      filter.focus();
      filter.select();
    }
  });
}

function isTyping(node) {
  return node.matches("input:not([type=checkbox]):not([type=radio]), textarea, select");
}
