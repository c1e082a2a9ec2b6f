// Asks before something that cannot be taken back.

import { setText } from "./dom.js";

const byId = (id) => document.getElementById(id);

/** Is it meant?  Esc and Cancel say no. */
export function confirmed(title, text, yes) {
  const dialog = byId("confirm-dialog");
  setText(byId("confirm-title"), title);
  setText(byId("confirm-text"), text);
  setText(byId("confirm-yes"), yes);
  dialog.returnValue = "no";
  dialog.showModal();
  byId("confirm-no").focus();
  return new Promise((resolve) => {
    byId("confirm-yes").onclick = () => dialog.close("yes");
    byId("confirm-no").onclick = () => dialog.close("no");
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
