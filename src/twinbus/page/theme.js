// Light or dark: what the system says, until somebody says otherwise in this tab.

import { setAttribute, setText } from "./dom.js";

export function startTheme(button) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;

  const show = () => {
    const dark = chosen ? chosen === "dark" : system.matches;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    const other = dark ? "light" : "dark";
    setText(button.querySelector(".unseen"), `Switch to ${other} colours`);
    setAttribute(button, "title", `Switch to ${other} colours (t)`);
  };

  const toggle = () => {
    chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    show();
  };
  system.addEventListener("change", show);
  button.addEventListener("click", toggle);
  show();
  return toggle;
}
