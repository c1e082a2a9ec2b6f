// Builds and updates elements.  Text is only ever set as text: there is no way in here for markup,
// so a message or a name that looks like markup is shown, never run.

const SVG = "http://www.w3.org/2000/svg";

/** An element: `el("a", { class: "link", href: "#/" }, "text", child, null)`. */
export function el(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** The same for drawings. */
export function svg(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else if (name === "href") {
      // Links stay on this page: whatever a name contains, it cannot become an address.
      if (!String(value).startsWith("#")) throw new Error("a link leads to a route of this page");
      node.setAttribute("href", value);
    } else if (name === "value") {
      node.value = value;
    } else {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** Set text, but leave the document alone when nothing changes. */
export function setText(node, text) {
  const wanted = String(text);
  if (node.textContent !== wanted) node.textContent = wanted;
}

/** Set or take away an attribute, but leave the document alone when nothing changes. */
export function setAttribute(node, name, value) {
  if (value === null || value === undefined || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else {
    const wanted = value === true ? "" : String(value);
    if (node.getAttribute(name) !== wanted) node.setAttribute(name, wanted);
  }
}

/** Replace what is in a node. */
export function replace(node, ...children) {
  node.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined));
}

/**
 * Children of a parent for a list of things, each made once, updated ever after and found by its
 * key.  Elements that stay are not touched, so focus and scrolling stay too.
 */
export class Children {
  constructor(parent, keyOf, make) {
    this.parent = parent;
    this.keyOf = keyOf;
    this.make = make; // thing → { node, update(thing) }
    this.made = new Map();
  }

  update(things) {
    const wanted = new Set(things.map(this.keyOf));
    for (const [key, part] of this.made) {
      if (wanted.has(key)) continue;
      part.node.remove();
      this.made.delete(key);
    }
    let place = this.parent.firstChild;
    for (const thing of things) {
      const key = this.keyOf(thing);
      let part = this.made.get(key);
      if (!part) {
        part = this.make(thing);
        this.made.set(key, part);
      }
      part.update(thing);
      if (part.node === place) place = place.nextSibling;
      else this.parent.insertBefore(part.node, place);
    }
  }
}

/** A table with headings; `columns` are `[text, class]`, `rows` as `row` takes them. */
export function table(caption, columns, rows = [], classes = "") {
  const heads = columns.map(([text, kind = ""]) => el("th", { scope: "col", class: kind }, text));
  return el(
    "table",
    { class: classes },
    el("caption", { class: "unseen" }, caption),
    el("thead", {}, el("tr", {}, heads)),
    el(
      "tbody",
      {},
      rows.map((cells) => row(columns, cells)),
    ),
  );
}

/** A row of a table: what stands in each of its columns, first what the row is about. */
export function row(columns, [first, ...rest]) {
  return el(
    "tr",
    {},
    el("th", { scope: "row" }, first),
    rest.map((cell, at) => el("td", { class: columns[at + 1][1] ?? "" }, cell)),
  );
}

/** A table with a title; `more` stands beside the title. */
export function tablePanel(title, rows, ...more) {
  return el(
    "section",
    { class: "panel" },
    el("div", { class: "panel-head" }, el("h2", {}, title), more),
    el("div", { class: "table-frame" }, rows),
  );
}

/** A list of terms and what they are; pairs without a value are left out. */
export function facts(pairs, classes = "facts") {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return el(
    "dl",
    { class: classes },
    shown.map(([term, value]) => el("div", {}, el("dt", {}, term), el("dd", {}, value))),
  );
}

/** Something where there is nothing: what it means and what to do. */
export function empty(title, ...hints) {
  return el(
    "div",
    { class: "empty" },
    el("p", { class: "empty-title" }, title),
    hints.map((hint) => (typeof hint === "string" ? el("p", {}, hint) : hint)),
  );
}

/** A command or a setting that can be copied. */
export function command(text) {
  const button = el("button", { type: "button", class: "quiet small" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      setText(button, "Copied");
    } catch {
      setText(button, "Select and copy by hand");
    }
    setTimeout(() => setText(button, "Copy"), 2000);
  });
  return el("div", { class: "command" }, el("code", {}, text), button);
}

/** A button that does something at a click; `kind` is its class. */
export function button(text, kind, click, more = {}) {
  return el("button", { type: "button", class: kind, on: { click }, ...more }, text);
}

/** A place of the page: its title, what it is about, and its parts. */
export function page(title, lead, ...parts) {
  return el("div", { class: "page" }, el("h1", {}, title), el("p", { class: "lead" }, lead), parts);
}

/** A card of the overview; its heading leads to the whole of it. */
export function card(title, href) {
  const body = el("div", { class: "card-body" });
  const node = el(
    "section",
    { class: "panel card" },
    el("h2", {}, el("a", { href }, title, el("span", { "aria-hidden": "true", class: "go" }, "→"))),
    body,
  );
  return { node, body };
}

/** Draws a part of the page anew only when what it is drawn from has changed. */
export class Redrawn {
  constructor(node, draw) {
    this.node = node;
    this.draw = draw; // (...things) → children
    this.drawn = null;
  }

  update(...things) {
    const now = JSON.stringify(things);
    if (now === this.drawn) return;
    this.drawn = now;
    replace(this.node, this.draw(...things));
  }
}

/** A dot with a word: how something is. */
export function condition(health, text = health) {
  return el("span", { class: "condition", "data-health": health }, text);
}
