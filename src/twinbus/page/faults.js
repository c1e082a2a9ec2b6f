// Faults on purpose: those in force, and for who may manage the bus, adding and clearing them.

import { button, card, Children, el, empty, page, replace, setText } from "./dom.js";
import { KINDS } from "./faultkinds.js";
import { duration, plural, strange, whole } from "./format.js";
import { notice } from "./notices.js";
import { askToSign } from "./signin.js";

const DURATIONS = [
  ["60", "1 minute"],
  ["30", "30 seconds"],
  ["300", "5 minutes"],
  ["3600", "1 hour"],
  ["", "until cleared"],
];
const SCOPES = { entity: "Entity", partition: "Partition", store: "Store", broker: "Broker" };

/** What a fault is put on, in words. */
function scopeOf(fault) {
  const parts = [];
  if (fault.entity) parts.push(fault.entity);
  if (fault.partition)
    parts.push(
      `${fault.partition.length > 1 ? "partitions" : "partition"} ${fault.partition.join(", ")}`,
    );
  if (fault.store !== undefined && fault.store !== null) parts.push(`store ${fault.store}`);
  if (fault.broker !== undefined && fault.broker !== null) parts.push(`broker ${fault.broker}`);
  return parts.length > 0 ? parts.join(", ") : (fault.namespace ?? "everything");
}

function manner(fault) {
  const parts = [];
  if (fault.delay_ms) parts.push(`${whole(fault.delay_ms)} ms late`);
  if (fault.probability !== undefined && fault.probability < 1)
    parts.push(`${whole(fault.probability * 100)} % of the time`);
  return parts.join(", ");
}

function remaining(fault) {
  return fault.remaining_s === null ? "until cleared" : `${duration(fault.remaining_s)} left`;
}

export function faultsCard() {
  const { node, body } = card("Faults", "#/faults");
  const none = el("p", { class: "muted" }, "None in force.");
  const list = el("ul", { class: "lines" });
  const lines = new Children(
    list,
    (fault) => fault.id,
    (fault) => {
      const left = el("span", { class: "muted" });
      const line = el(
        "li",
        { class: "fault-line" },
        el("b", {}, fault.kind),
        left,
        strange(scopeOf(fault), "muted"),
      );
      return { node: line, update: (now) => setText(left, remaining(now)) };
    },
  );
  body.append(none, list);
  return {
    node,
    update(state) {
      none.hidden = state.faults.length > 0;
      lines.update(state.faults);
    },
  };
}

export function faultsView(bus) {
  const list = el("ul", { class: "faults" });
  const none = empty(
    "No faults in force.",
    "Inject one to see how your applications cope with refused sends, a lost partition, a slow disk or a lost data centre.",
  );
  const clearAll = button("Clear all", "outlined to-end", () =>
    act(() => bus.clearFaults(), "All faults cleared."),
  );
  const lines = new Children(
    list,
    (fault) => fault.id,
    (fault) => faultLine(bus, fault),
  );
  const form = new FaultForm(bus);
  const count = el("span", { class: "muted" });
  const node = page(
    "Faults",
    "Make something go wrong on purpose. A fault takes effect at once and lasts until its time is up, you clear it or the server stops.",
    el(
      "div",
      { class: "columns" },
      el(
        "section",
        { class: "panel column-main" },
        el("div", { class: "panel-head" }, el("h2", {}, "In force"), count, clearAll),
        none,
        list,
      ),
      form.node,
    ),
  );
  return {
    title: "Faults",
    node,
    signed: () => form.signed(),
    update(state) {
      none.hidden = state.faults.length > 0;
      setText(count, state.faults.length > 0 ? plural(state.faults.length, "fault") : "");
      clearAll.hidden = !bus.mayManage || state.faults.length < 2;
      lines.update(state.faults);
      form.update(state);
    },
  };
}

async function act(request, done) {
  try {
    await request();
    notice(done);
  } catch (error) {
    notice(error.message, "error");
  }
}

function faultLine(bus, fault) {
  const clear = button(
    "Clear",
    "outlined",
    () => act(() => bus.clearFault(fault.id), `Fault ${fault.id} (${fault.kind}) cleared.`),
    { "aria-label": `Clear fault ${fault.id}, ${fault.kind}` },
  );
  const left = el("span", { class: "muted" });
  const acted = el("span", { class: "muted" });
  const how = manner(fault);
  const node = el(
    "li",
    {},
    el(
      "div",
      { class: "fault-what" },
      el("b", {}, fault.kind),
      el("span", {}, "on ", strange(scopeOf(fault))),
      how ? el("span", { class: "chip" }, how) : null,
    ),
    el(
      "div",
      { class: "fault-how" },
      el("span", { class: "muted" }, `no. ${fault.id}`),
      left,
      acted,
    ),
    clear,
  );
  return {
    node,
    update(now) {
      clear.hidden = !bus.mayManage;
      setText(left, remaining(now));
      setText(acted, `acted ${plural(now.acted, "time")}`);
    },
  };
}

/** The form for a new fault: the fields that its kind takes, and no others. */
class FaultForm {
  constructor(bus) {
    this.bus = bus;
    this.known = el("datalist", { id: "fault-entities" });
    this.names = "";
    this.node = el("section", {
      class: "panel padded column-side",
      "aria-labelledby": "fault-title",
    });
    this.signed();
  }

  signed() {
    this.shown = null;
    this.update();
  }

  update(state = this.bus.state) {
    const wanted = this.bus.mayManage ? "form" : "sign";
    if (wanted !== this.shown) {
      this.shown = wanted;
      replace(
        this.node,
        el("h2", { id: "fault-title" }, "Add a fault"),
        wanted === "form"
          ? this.form()
          : askToSign(this.bus, "To add or clear faults you need a key with the Manage right."),
      );
    }
    const names = state?.entities.map((entity) => entity.path) ?? [];
    if (names.join("\n") !== this.names) {
      this.names = names.join("\n");
      this.known.replaceChildren(...names.map((name) => el("option", { value: name })));
    }
  }

  form() {
    this.kind = el("select", { id: "fault-kind" });
    this.sentence = el("p", { class: "hint", id: "fault-sentence" });
    this.fields = el("div", { class: "fields" });
    this.problem = el("p", { class: "problem", role: "alert" });
    this.kind.addEventListener("change", () => this.showKind());
    const form = el(
      "form",
      { class: "fields", novalidate: true },
      el(
        "div",
        { class: "field" },
        el("label", { for: "fault-kind" }, "Kind"),
        this.kind,
        this.sentence,
      ),
      this.fields,
      this.known,
      this.problem,
      el(
        "div",
        { class: "buttons" },
        el("button", { type: "submit", class: "filled" }, "Add fault"),
      ),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    this.kind.append(...KINDS.map(({ name }) => el("option", { value: name }, name)));
    this.showKind();
    return form;
  }

  showKind() {
    const kind = KINDS.find(({ name }) => name === this.kind.value);
    setText(this.sentence, kind.sentence);
    const fields = Object.keys(SCOPES)
      .filter((key) => kind.scope.includes(key))
      .map((key) => this.scopeField(key, kind.needs === key));
    if (kind.takes_delay)
      fields.push(
        field("delay_ms", "Delay in milliseconds", { type: "number", min: 1, value: 500 }),
      );
    if (kind.takes_probability)
      fields.push(
        field("probability", "How often, in percent", {
          type: "number",
          min: 1,
          max: 100,
          value: 100,
        }),
      );
    if (!kind.is_once) {
      fields.push(
        el(
          "div",
          { class: "field" },
          el("label", { for: "fault-duration_s" }, "How long"),
          el(
            "select",
            { id: "fault-duration_s", name: "duration_s" },
            DURATIONS.map(([value, text]) => el("option", { value }, text)),
          ),
        ),
      );
    }
    replace(this.fields, fields);
  }

  scopeField(key, isNeeded) {
    const label = isNeeded ? SCOPES[key] : `${SCOPES[key]} (empty for all)`;
    const input =
      key === "entity"
        ? { list: "fault-entities", autocomplete: "off", spellcheck: "false" }
        : { type: "number", min: 0 };
    return field(key, label, input);
  }

  /** What the fields say; empty ones say nothing. */
  wanted() {
    const fault = { kind: this.kind.value };
    for (const input of this.fields.querySelectorAll("[name]")) {
      if (input.value.trim() === "") continue;
      fault[input.name] = input.name === "entity" ? input.value.trim() : Number(input.value);
    }
    if (fault.probability !== undefined) fault.probability /= 100;
    return fault;
  }

  async submit() {
    setText(this.problem, "");
    try {
      const fault = await this.bus.addFault(this.wanted());
      notice(`Fault ${fault.id} (${fault.kind}) is in force.`);
    } catch (error) {
      setText(this.problem, error.message);
    }
  }
}

function field(name, label, input) {
  const id = `fault-${name}`;
  return el(
    "div",
    { class: "field" },
    el("label", { for: id }, label),
    el("input", { id, name, ...input }),
  );
}
