// The message browser of an entity: looks without locking, a page at a time; messages can be
// opened, selected, and by who may manage the bus resubmitted and deleted.

import { confirmed } from "./confirm.js";
import { button, Children, el, empty, replace, setAttribute, setText, table } from "./dom.js";
import { bytes, plural, setTime, strange, visible, whole } from "./format.js";
import { keepOneInTabOrder, moveByArrows } from "./keys.js";
import { messagePanel } from "./message.js";
import { notice } from "./notices.js";
import { withOptions } from "./routes.js";
import { openSignIn } from "./signin.js";

const PAGE = 50;
const PREVIEW_CHARACTERS = 120;
const OPENER = "a.message-number";
const STATES = ["active", "deferred", "scheduled"];
const SUBQUEUES = {
  messages: "",
  "dead-letters": "/$DeadLetterQueue",
  transfer: "/$Transfer/$DeadLetterQueue",
};

export class MessageBrowser {
  constructor(bus, entity, show) {
    this.bus = bus;
    this.path = entity.path + SUBQUEUES[show];
    this.show = show;
    this.isDead = show !== "messages";
    this.options = { from: null, state: null };
    this.messages = [];
    this.next = null;
    this.selected = new Set();
    this.opened = null;
    this.countOnLoad = null;
    this.makeList();
    this.side = el("div", { class: "message-place" });
    this.node = el("div", { class: "browser" });
    this.signed();
  }

  makeList() {
    this.all = el("input", {
      type: "checkbox",
      "aria-label": "Select all on this page",
      on: { change: () => this.selectAll() },
    });
    this.table = table(
      "Messages",
      [
        [this.all, "check"],
        ["Number", "number"],
        ["Message id"],
        [this.isDead ? "Reason" : "Body"],
        ["Enqueued"],
        ["Deliveries", "number may-hide"],
        ["Size", "number may-hide"],
      ],
      [],
      "messages",
    );
    [this.body] = this.table.tBodies;
    this.rows = new Children(
      this.body,
      (message) => message.sequence_number,
      (message) => new MessageRow(this, message),
    );
    this.none = el("div", { hidden: true });
    this.resubmitButton = button("", "filled", () => this.resubmit([...this.selected]));
    this.deleteButton = button("", "outlined danger", () => this.delete([...this.selected]));
    this.refreshButton = button("Refresh", "outlined", () => this.load());
    this.newer = el("a", { class: "button outlined" }, "First page");
    this.older = el("a", { class: "button outlined" }, "Next page");
    this.where = el("span", { class: "muted", role: "status" });
    this.state = el(
      "select",
      { id: "message-state", on: { change: () => this.changeState() } },
      el("option", { value: "" }, "in any state"),
      STATES.map((state) => el("option", { value: state }, state)),
    );
    this.list = el(
      "section",
      { class: "panel", "aria-label": "Messages" },
      el(
        "div",
        { class: "panel-head tools" },
        el("label", { class: "inline", for: "message-state" }, "Messages"),
        this.state,
        this.where,
        el(
          "span",
          { class: "tools-end" },
          this.resubmitButton,
          this.deleteButton,
          this.refreshButton,
          this.newer,
          this.older,
        ),
      ),
      el("div", { class: "table-frame" }, this.table),
      this.none,
    );
    moveByArrows(this.body, OPENER);
  }

  /** Signed in or out: who may not look sees why. */
  signed() {
    if (this.bus.mayListen) {
      replace(this.node, this.list, this.side);
      this.load();
    } else {
      const text = "You need a key with the Listen or the Manage right.";
      const signIn = button("Sign in", "filled", openSignIn);
      replace(
        this.node,
        el("section", { class: "panel" }, empty("Sign in to see messages.", text, signIn)),
      );
    }
    this.isAllowed = this.bus.mayListen;
  }

  /** The address has changed. */
  route(route) {
    const options = {
      from: route.from ?? null,
      state: STATES.includes(route.state) ? route.state : null,
    };
    const isOther = options.from !== this.options.from || options.state !== this.options.state;
    this.options = options;
    this.state.value = options.state ?? "";
    this.wanted = route.message ?? null;
    if (isOther) this.load();
    else this.showOpened();
  }

  changeState() {
    location.hash = withOptions(location.hash, {
      state: this.state.value,
      from: null,
      message: null,
    });
  }

  async load() {
    if (!this.bus.mayListen) return;
    this.countOnLoad = this.count;
    const options = { ...this.options };
    try {
      const answer = await this.bus.messages(this.path, { ...options, count: PAGE });
      // Another page may have been asked for meanwhile.
      if (options.from !== this.options.from || options.state !== this.options.state) return;
      this.messages = answer.messages;
      this.next = answer.next;
    } catch (error) {
      notice(error.message, "error");
      return;
    }
    const numbers = new Set(this.messages.map((message) => message.sequence_number));
    this.selected = new Set([...this.selected].filter((number) => numbers.has(number)));
    this.draw();
    this.showOpened();
  }

  draw() {
    this.rows.update(this.messages);
    keepOneInTabOrder(this.body, OPENER);
    const isEmpty = this.messages.length === 0;
    this.table.hidden = isEmpty;
    this.none.hidden = !isEmpty;
    if (isEmpty) replace(this.none, this.nothing());
    setAttribute(this.newer, "href", withOptions(location.hash, { from: null, message: null }));
    setAttribute(
      this.older,
      "href",
      withOptions(location.hash, { from: this.next, message: null }),
    );
    this.newer.hidden = !this.options.from;
    this.older.hidden = this.next === null;
    setText(
      this.where,
      isEmpty
        ? ""
        : `${plural(this.messages.length, "message")}${this.options.from ? ` from number ${this.options.from}` : ""}`,
    );
    this.drawSelection();
  }

  nothing() {
    if (this.options.from) return empty("No more messages.");
    if (this.options.state) return empty(`No ${this.options.state} messages.`);
    if (this.isDead)
      return empty(
        "No dead letters.",
        "Messages come here when they were delivered too often, expired, or were dead-lettered by a receiver.",
      );
    return empty(
      "No messages.",
      "Send one, then refresh:",
      el(
        "p",
        {},
        el("code", {}, `twinbus send ${visible(this.path.split("/Subscriptions/")[0])} 'hello'`),
      ),
    );
  }

  drawSelection() {
    const count = this.selected.size;
    const mayChange = this.bus.mayManage && count > 0;
    this.resubmitButton.hidden = !mayChange || !this.isDead;
    this.deleteButton.hidden = !mayChange;
    setText(this.resubmitButton, `Resubmit ${whole(count)}`);
    setText(this.deleteButton, `Delete ${whole(count)}`);
    this.table.classList.toggle("may-select", this.bus.mayManage);
    this.all.checked = count > 0 && count === this.messages.length;
    this.all.indeterminate = count > 0 && count < this.messages.length;
  }

  select(number, isOn) {
    if (isOn) this.selected.add(number);
    else this.selected.delete(number);
    this.drawSelection();
  }

  selectAll() {
    this.selected = new Set(
      this.all.checked ? this.messages.map((message) => message.sequence_number) : [],
    );
    this.draw();
  }

  showOpened() {
    const message = this.messages.find((each) => each.sequence_number === this.wanted) ?? null;
    this.node.classList.toggle("has-message", message !== null);
    for (const { node, link } of this.rows.made.values()) {
      setAttribute(node, "aria-selected", link.dataset.number === this.wanted ? "true" : null);
    }
    if (message === this.opened) return;
    this.opened = message;
    replace(
      this.side,
      message ? messagePanel(message, this.actions(message), () => this.closeMessage()) : null,
    );
    if (message && !this.body.contains(document.activeElement))
      this.side.querySelector("h2").focus({ preventScroll: true });
  }

  actions(message) {
    if (!this.bus.mayManage) return null;
    const number = [message.sequence_number];
    const resubmit = button("Resubmit", "filled", () => this.resubmit(number));
    const remove = button("Delete", "outlined danger", () => this.delete(number));
    return this.isDead ? [resubmit, remove] : [remove];
  }

  closeMessage() {
    if (!this.wanted) return false;
    const row = this.rows.made.get(this.wanted);
    location.hash = withOptions(location.hash, { message: null });
    row?.link.focus();
    return true;
  }

  resubmit(numbers) {
    return this.change("resubmitted", () => this.bus.resubmit(this.path, numbers));
  }

  async delete(numbers) {
    const text = "You cannot undo this.";
    if (await confirmed(`Delete ${plural(numbers.length, "message")}?`, text, "Delete")) {
      await this.change("deleted", () => this.bus.delete(this.path, numbers));
    }
  }

  async change(word, request) {
    try {
      const { results } = await request();
      const failed = results.filter((each) => each.result !== word);
      const done = results.length - failed.length;
      if (done > 0) notice(`${plural(done, "message")} ${word}.`);
      if (failed.length > 0) {
        const reasons = new Set(failed.map((each) => each.reason ?? each.result));
        notice(
          `${plural(failed.length, "message")} not ${word}: ${visible([...reasons].join("; "))}`,
          "error",
        );
      }
      if (results.some((each) => each.sequence_number === this.wanted && each.result === word))
        this.closeMessage();
    } catch (error) {
      notice(error.message, "error");
    }
    this.selected.clear();
    await this.load();
  }

  /** A new state: the list stays as it is, but says when there is something else to see. */
  update(entity) {
    const { active, deferred, scheduled, dead_letter, transfer_dead_letter } = entity.counts;
    this.count = {
      messages: active + deferred + scheduled,
      "dead-letters": dead_letter,
      transfer: transfer_dead_letter,
    }[this.show];
    this.countOnLoad ??= this.count;
    if (this.isAllowed !== this.bus.mayListen) this.signed();
    const hasChanged = this.count !== this.countOnLoad;
    this.refreshButton.classList.toggle("is-due", hasChanged);
    setText(this.refreshButton, hasChanged ? "Changed: refresh" : "Refresh");
    if (this.mayManage !== this.bus.mayManage) {
      this.mayManage = this.bus.mayManage;
      this.opened = undefined;
      this.drawSelection();
      this.showOpened();
    }
  }
}

class MessageRow {
  constructor(browser, message) {
    const number = message.sequence_number;
    this.browser = browser;
    this.check = el("input", {
      type: "checkbox",
      tabindex: -1,
      "aria-label": `Select message ${number}`,
      on: { change: () => browser.select(number, this.check.checked) },
    });
    this.link = el("a", { class: "message-number", "data-number": number, tabindex: -1 }, number);
    this.when = el("time");
    this.middle = el("td", { class: "preview" });
    this.deliveries = el("td", { class: "number may-hide" });
    this.node = el(
      "tr",
      {},
      el("td", { class: "check" }, this.check),
      el("th", { scope: "row", class: "number" }, this.link),
      el(
        "td",
        { class: "message-id" },
        message.message_id === null ? "–" : strange(message.message_id),
      ),
      this.middle,
      el("td", { class: "when" }, this.when),
      this.deliveries,
      el("td", { class: "number may-hide" }, bytes(message.size_bytes)),
    );
    this.node.addEventListener("click", (event) => {
      if (!event.target.closest("a, input") && !getSelection().toString()) this.link.click();
    });
    this.link.addEventListener("keydown", (event) => {
      if (event.key !== " " || !browser.bus.mayManage) return;
      event.preventDefault();
      this.check.checked = !this.check.checked;
      browser.select(number, this.check.checked);
    });
  }

  update(message) {
    this.check.checked = this.browser.selected.has(message.sequence_number);
    setAttribute(
      this.link,
      "href",
      withOptions(location.hash, { message: message.sequence_number }),
    );
    setTime(this.when, Date.parse(message.enqueued));
    setText(this.deliveries, whole(message.delivery_count));
    const chip = message.state === "active" ? null : el("span", { class: "chip" }, message.state);
    replace(this.middle, chip, this.browser.isDead ? deadReason(message) : preview(message));
  }
}

function deadReason({ dead_letter }) {
  const text = dead_letter?.reason
    ? strange(dead_letter.reason, "reason")
    : el("span", { class: "muted" }, "no reason given");
  return el(
    "span",
    {},
    text,
    dead_letter?.description
      ? el("span", { class: "muted" }, " ", strange(dead_letter.description))
      : null,
  );
}

function preview({ body }) {
  if (body.kind === "none") return el("span", { class: "muted" }, "no body");
  return strange(body.text.slice(0, PREVIEW_CHARACTERS), "preview-text");
}
