// The last two minutes as two lines, one for what came in and one for what went out.  Only those
// that are on the screen are drawn, so a thousand entities cost no more than twenty.

import { setAttribute, svg } from "./dom.js";

const SPAN_MS = 120_000;

const watcher = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      const line = lines.get(entry.target);
      if (!line) continue;
      line.isSeen = entry.isIntersecting;
      if (line.isSeen) line.draw();
    }
  },
  { rootMargin: "100px" },
);
const lines = new WeakMap();

/** Rates over time; old ones are forgotten. */
export class History {
  constructor() {
    this.points = []; // [ms, incoming, outgoing]
  }

  add(nowMs, incoming, outgoing) {
    this.points.push([nowMs, incoming, outgoing]);
    const from = nowMs - SPAN_MS - 5000;
    while (this.points.length > 2 && this.points[1][0] < from) this.points.shift();
  }
}

export class Sparkline {
  /** `kind` is of an entity: nothing leaves a topic, and nobody sends to a subscription. */
  constructor(history, kind = "queue", width = 96, height = 24) {
    this.history = history;
    this.width = width;
    this.height = height;
    this.isSeen = false;
    this.names = { topic: ["in"], subscription: ["out"] }[kind] ?? ["out", "in"];
    this.traces = null;
    this.node = svg("svg", {
      class: "sparkline",
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      preserveAspectRatio: "none",
      "aria-hidden": "true",
    });
    lines.set(this.node, this);
    watcher.observe(this.node);
  }

  /** Its parts, made when it is first seen: most of a long list never is. */
  make() {
    const { width, height, names } = this;
    this.traces = names.map((name) => ({
      which: name === "in" ? 1 : 2,
      // Of two lines only one has its area filled: where two overlapped, neither could be told.
      area: svg("path", { class: name === names.at(-1) ? `area-${name}` : "area-none" }),
      line: svg("path", { class: `line-${name}` }),
    }));
    const base = svg("line", {
      class: "line-base",
      x1: 0,
      x2: width,
      y1: height - 0.5,
      y2: height - 0.5,
    });
    this.node.append(base, ...this.traces.flatMap(({ area, line }) => [area, line]));
  }

  /** The highest rate that is shown. */
  get most() {
    return this.history.points.reduce((most, point) => Math.max(most, point[1], point[2]), 0);
  }

  draw() {
    const { points } = this.history;
    if (!this.isSeen || points.length === 0) return;
    if (!this.traces) this.make();
    const now = Date.now();
    const { width, height } = this;
    const top = Math.max(this.most, 1); // a lone message must not look like a flood
    const x = (point) => (width - ((now - point[0]) / SPAN_MS) * width).toFixed(1);
    for (const { which, area, line } of this.traces) {
      const y = (point) => (height - 1.5 - (point[which] / top) * (height - 4)).toFixed(1);
      const path = points.map((point) => `${x(point)} ${y(point)}`).join("L");
      setAttribute(line, "d", `M${path}`);
      setAttribute(area, "d", `M${x(points[0])} ${height}L${path}L${x(points.at(-1))} ${height}Z`);
    }
  }
}
