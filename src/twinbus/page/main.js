// Puts the page together: the bar, the place that the address names, and the stream of states.

import { Bus } from "./bus.js";
import { costView } from "./cost.js";
import { el, empty, setAttribute, setText } from "./dom.js";
import { entityView } from "./entity.js";
import { faultsView } from "./faults.js";
import { duration, plural, refreshTimes, visible, whole } from "./format.js";
import { startKeys } from "./keys.js";
import { Live } from "./live.js";
import { machineView } from "./machine.js";
import { overviewView } from "./overview.js";
import { pairsView } from "./pairs.js";
import { parseRoute, withOptions } from "./routes.js";
import { startSignIn } from "./signin.js";
import { startTheme } from "./theme.js";

const VIEWS = {
  overview: overviewView,
  entity: entityView,
  pairs: pairsView,
  faults: faultsView,
  machine: machineView,
  cost: costView,
  nowhere: nowhereView,
};

const bus = new Bus();
const main = document.getElementById("main");
const byId = (id) => document.getElementById(id);
let shown = { key: null, view: null };

/** Show what the address names; the same place with other options keeps its elements. */
function showRoute(isFirst) {
  const route = parseRoute(location.hash);
  bus.want({ namespace: route.namespace ?? null });
  const key = `${route.view} ${route.namespace ?? ""} ${route.path ?? ""}`;
  if (key !== shown.key) {
    shown.view?.close?.();
    const view = VIEWS[route.view](bus, route);
    shown = { key, view };
    main.replaceChildren(view.node);
    document.title = view.title ? `${visible(view.title)} · twinbus` : "twinbus";
    if (!isFirst) {
      scrollTo(0, 0);
      main.focus({ preventScroll: true });
    }
  }
  shown.view.route?.(route);
  if (bus.state) shown.view.update(bus.state);
  for (const link of document.querySelectorAll(".places a")) {
    setAttribute(link, "aria-current", link.dataset.view === route.view ? "page" : null);
  }
}

function nowhereView() {
  const node = el(
    "div",
    { class: "page" },
    el("h1", {}, "Not found"),
    el(
      "section",
      { class: "panel" },
      empty(
        "This page does not exist.",
        el("p", {}, el("a", { href: "#/" }, "Go to the overview")),
      ),
    ),
  );
  return { title: "Not found", node, update() {} };
}

function showBar(state) {
  const { server } = state;
  const health = byId("health");
  health.hidden = false;
  health.dataset.health = server.status;
  setText(health, server.status.charAt(0).toUpperCase() + server.status.slice(1));
  const count = state.faults.length;
  setText(byId("faults-count"), count ? whole(count) : "");
  setText(byId("pairs-count"), state.pairs.length ? whole(state.pairs.length) : "");
  setText(
    byId("version"),
    `${server.product} ${server.version} (${server.build}), Python ${server.python}`,
  );
  setText(
    byId("uptime"),
    `up for ${duration(server.uptime_s)}, ${plural(server.connections, "connection")}`,
  );
  showNamespace(state);
}

function showNamespace(state) {
  const select = byId("namespace");
  const names = state.server.namespaces;
  // A key opens one namespace; without one, on this machine, there may be several to look at.
  const isChoice = names.length > 1 && !bus.isSignedIn;
  select.hidden = !isChoice;
  byId("namespace-name").hidden = isChoice;
  setText(byId("namespace-name"), visible(state.namespace));
  if (!isChoice) return;
  if ([...select.options].map((option) => option.value).join("\n") !== names.join("\n")) {
    select.replaceChildren(...names.map((name) => el("option", { value: name }, visible(name))));
  }
  if (document.activeElement !== select) select.value = state.namespace;
}

function showLive(condition, reason) {
  const live = byId("live");
  const texts = { live: "Live", gone: "No connection", refused: "Not signed in", paused: "Paused" };
  live.dataset.live = condition;
  setText(live, texts[condition] ?? "Connecting…");
  const banner = byId("gone");
  banner.hidden = condition !== "gone" && condition !== "refused";
  document.body.classList.toggle("is-stale", condition === "gone");
  if (condition === "gone") {
    setText(
      banner,
      "The server does not answer. You see the last known state; the page reconnects by itself.",
    );
  } else if (condition === "refused") {
    setText(banner, `Sign in to see this server. ${reason}`);
  }
}

bus.addEventListener("state", () => {
  showBar(bus.state);
  shown.view?.update(bus.state);
});
bus.addEventListener("signed", () => {
  shown.view?.signed?.();
  if (bus.state) shown.view?.update(bus.state);
});
byId("namespace").addEventListener("change", (event) => {
  const { value } = event.target;
  const isDefault = value === bus.state.server.namespaces[0];
  location.hash = withOptions("#/", { namespace: isDefault ? null : value });
});
byId("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address names a place, not an element
  main.focus();
});
addEventListener("hashchange", () => showRoute(false));
setInterval(() => refreshTimes(document), 1000);

startSignIn(bus);
startKeys(byId("keys"), startTheme(byId("theme")), (event) => shown.view?.escape?.(event));
showRoute(true);
new Live(bus, showLive).restart();
