// The bus as this page knows it: requests to it, the newest state, and who wants to hear of it.
// This is the only place that knows the form of what the server answers (docs/designs, "The page").

import { History } from "./sparkline.js";

const ENTITIES_MAX = 1000;
const API_VERSION = "2021-05";

/** A request that the server has refused, or that has not reached it (status 0). */
export class Refused extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

export class Bus extends EventTarget {
  constructor() {
    super();
    this.state = null;
    this.signer = null;
    this.mayManage = false;
    this.histories = new Map(); // namespace and path → History
    this.wanted = { namespace: null, entities: "" };
  }

  get isSignedIn() {
    return this.signer !== null;
  }

  /** Who has signed in has the Listen right: without it the server would not have taken the key. */
  get mayListen() {
    return this.isSignedIn;
  }

  /** Which part of the bus the state is to be about. */
  want(wanted) {
    const next = { ...this.wanted, ...wanted };
    if (next.namespace === this.wanted.namespace && next.entities === this.wanted.entities) return;
    this.wanted = next;
    this.dispatchEvent(new Event("wanted"));
  }

  statePath(name) {
    const query = new URLSearchParams({ top: ENTITIES_MAX });
    if (this.wanted.namespace && !this.isSignedIn) query.set("namespace", this.wanted.namespace);
    if (this.wanted.entities) query.set("entities", this.wanted.entities);
    return `/$page/${name}?${query}`;
  }

  /** Try a key: it is kept only if the server takes it.  What it may, the server's answers tell. */
  async signIn(signer) {
    const before = this.signer;
    this.signer = signer;
    try {
      const state = await this.request("GET", this.statePath("state"));
      this.mayManage = await this.isAllowed("/$faults");
      this.take(state);
    } catch (error) {
      this.signer = before;
      throw error;
    }
    this.dispatchEvent(new Event("signed"));
  }

  async isAllowed(path) {
    try {
      await this.request("GET", path);
      return true;
    } catch (error) {
      if (error.status === 401 || error.status === 403) return false;
      throw error;
    }
  }

  signOut() {
    this.signer = null;
    this.mayManage = false;
    this.dispatchEvent(new Event("signed"));
  }

  async headers() {
    const headers = { "X-Twinbus-Page": "1" };
    if (this.signer) headers.Authorization = await this.signer.token();
    return headers;
  }

  /** One request; its answer, or Refused with a sentence for people. */
  async send(method, path, document = undefined) {
    const headers = await this.headers();
    const options = { method, headers, cache: "no-store", credentials: "omit" };
    if (document !== undefined) {
      headers["Content-Type"] = "application/json";
      options.body = JSON.stringify(document);
    }
    let answer;
    try {
      answer = await fetch(path, options);
    } catch {
      throw new Refused(0, "The server does not answer.");
    }
    if (!answer.ok) throw await refusal(answer);
    return answer;
  }

  async request(method, path, document = undefined) {
    const answer = await this.send(method, path, document);
    return answer.status === 204 ? null : answer.json();
  }

  /** A document of the management API, as the official SDKs read it: XML, as text. */
  async managed(path) {
    const place = path.split("/").map(encodeURIComponent).join("/");
    return (await this.send("GET", `/${place}?api-version=${API_VERSION}`)).text();
  }

  messages(entity, options) {
    const given = Object.entries({ entity, ...options }).filter(([, value]) => value);
    return this.request("GET", `/$page/messages?${new URLSearchParams(given)}`);
  }

  resubmit(entity, numbers) {
    return this.request("POST", "/$page/resubmit", { entity, sequence_numbers: numbers });
  }

  delete(entity, numbers) {
    return this.request("POST", "/$page/delete", { entity, sequence_numbers: numbers });
  }

  addFault(fault) {
    return this.request("POST", "/$faults", fault);
  }

  clearFault(id) {
    return this.request("DELETE", `/$faults/${encodeURIComponent(id)}`);
  }

  clearFaults() {
    return this.request("DELETE", "/$faults");
  }

  /** A new state has come. */
  take(state) {
    const nowMs = Date.now();
    const isInDefault = state.namespace === state.server.namespaces[0];
    const down = state.faults.filter(({ kind }) => kind === "partition-down");
    for (const entity of state.entities) {
      entity.namespace = state.namespace;
      entity.isInDefault = isInDefault;
      entity.key = `${state.namespace}/${entity.path}`;
      this.history(entity.key).add(nowMs, entity.rates.incoming, entity.rates.outgoing);
      for (const fault of down) markDown(entity, fault);
    }
    this.history(state.namespace).add(
      nowMs,
      state.totals.rates.incoming,
      state.totals.rates.outgoing,
    );
    this.state = state;
    this.dispatchEvent(new Event("state"));
  }

  history(key) {
    let history = this.histories.get(key);
    if (!history) {
      history = new History();
      this.histories.set(key, history);
    }
    return history;
  }

  /** The entity of this path, as of the newest state; names are the same in any case. */
  entity(path) {
    const wanted = path.toLowerCase();
    return this.state?.entities.find((entity) => entity.path.toLowerCase() === wanted) ?? null;
  }
}

/**
 * The health of a partition is that of its store; a fault takes away the partition and leaves the
 * store alone.  One on a topic is on its subscriptions too.
 */
function markDown(entity, fault) {
  const isElsewhere =
    fault.namespace && fault.namespace.toLowerCase() !== entity.namespace.toLowerCase();
  const names = [entity.path, entity.topic].filter(Boolean).map((name) => name.toLowerCase());
  if (isElsewhere || !names.includes(fault.entity.toLowerCase())) return;
  for (const partition of entity.partitions) {
    if (!fault.partition || fault.partition.includes(partition.partition))
      partition.health = "down";
  }
}

/** What a refusal says; requests about faults answer a little differently. */
export async function refusal(answer) {
  let reason = `The server answered ${answer.status}.`;
  try {
    const document = await answer.json();
    reason = document.reason ?? document.error ?? reason;
  } catch {
    // Not every answer is JSON: one from a proxy, say.  The status is all there is then.
  }
  return new Refused(answer.status, reason);
}
