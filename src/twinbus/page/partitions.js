// Partitions as a strip of cells, one each: filled, half or hollow, so that colour is not needed.

import { el, setAttribute } from "./dom.js";
import { plural } from "./format.js";

export class PartitionStrip {
  constructor() {
    this.node = el("span", { class: "strip", role: "img" });
  }

  update(partitions) {
    while (this.node.children.length > partitions.length) this.node.lastChild.remove();
    while (this.node.children.length < partitions.length) this.node.append(el("i"));
    partitions.forEach((partition, index) => {
      const cell = this.node.children[index];
      setAttribute(cell, "data-health", partition.health);
      setAttribute(cell, "title", sentence(partition));
    });
    setAttribute(this.node, "aria-label", summary(partitions));
  }
}

function sentence({ partition, store, health }) {
  return `Partition ${partition}, store ${store}: ${health}`;
}

export function summary(partitions) {
  const unwell = partitions.filter(({ health }) => health !== "up");
  const all = plural(partitions.length, "partition");
  if (unwell.length === 0) return `${all}, all up`;
  const which = unwell.map(({ partition, health }) => `${partition} is ${health}`);
  return `${all}: ${which.join(", ")}`;
}
