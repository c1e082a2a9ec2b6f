// What the address bar says.  A place on this page is a link that can be shared:
//
//   #/                                        everything at a glance
//   #/queues/orders                           an entity; names keep their slashes
//   #/topics/news/subscriptions/audit?show=dead-letters&message=7
//   #/pairs  #/faults  #/machine  #/cost      one part of the overview, in full

const PLAIN = ["pairs", "faults", "machine", "cost"];
const SUBSCRIPTIONS = "subscriptions";

function encodePath(path) {
  return path.split("/").map(encodeURIComponent).join("/");
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // a link that somebody has shortened by hand
  }
}

/** Where an address leads: `{ view, kind, path, show, … }`. */
export function parseRoute(hash) {
  const [place, query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const options = Object.fromEntries(new URLSearchParams(query));
  const segments = place
    .split("/")
    .filter((segment) => segment !== "")
    .map(decode);
  const [first, ...rest] = segments;
  if (PLAIN.includes(first) && rest.length === 0) return { ...options, view: first };
  if (first === "queues" && rest.length > 0) {
    return { ...options, view: "entity", path: rest.join("/") };
  }
  if (first === "topics" && rest.length > 0) {
    const last = rest.length - 2;
    const isSubscription = last > 0 && rest[last].toLowerCase() === SUBSCRIPTIONS;
    const topic = isSubscription ? rest.slice(0, last) : rest;
    const path = isSubscription
      ? `${topic.join("/")}/Subscriptions/${rest[last + 1]}`
      : topic.join("/");
    return { ...options, view: "entity", path };
  }
  return { ...options, view: segments.length === 0 ? "overview" : "nowhere" };
}

/** The address of an entity. */
export function entityRoute(entity, options = {}) {
  let place;
  if (entity.kind === "subscription") {
    place = `topics/${encodePath(entity.topic)}/${SUBSCRIPTIONS}/${encodePath(entity.name)}`;
  } else {
    place = `${entity.kind}s/${encodePath(entity.path)}`;
  }
  return address(place, { ...options, namespace: entity.isInDefault ? null : entity.namespace });
}

export function address(place, options = {}) {
  const given = Object.entries(options).filter(
    ([, value]) => value !== null && value !== undefined && value !== "",
  );
  const query = new URLSearchParams(given).toString();
  return `#/${place}${query ? `?${query}` : ""}`;
}

/** The same place with other options. */
export function withOptions(hash, options) {
  const [place, query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  return address(place, { ...Object.fromEntries(new URLSearchParams(query)), ...options });
}
