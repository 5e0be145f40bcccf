// The view's state in the URL's fragment: #/channels/NAME?tab=readers. A fragment works behind any
// path prefix, and never reaches the server.

import { signal } from "./view.js";

function parse(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  return {
    path: path.split("/").filter(Boolean).map(decoded),
    query: Object.fromEntries(new URLSearchParams(query)),
  };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export const route = signal(parse(location.hash));

let followed = false;

// Whether the view is not the first one of the page.
export const hasFollowed = () => followed;

addEventListener("hashchange", () => {
  followed = true;
  route.value = parse(location.hash);
});

// Return the link to a view; empty values are left out of the query.
export function href(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value != null);
  const text = new URLSearchParams(given).toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text && `?${text}`}`;
}

// Change parts of the query. `replace` leaves no entry in the history, as for each key typed.
export function setQuery(changes, { replace = false } = {}) {
  const { path, query } = route.value;
  const target = href(path, { ...query, ...changes });
  if (replace) {
    history.replaceState(null, "", target);
    route.value = parse(target);
  } else {
    location.hash = target;
  }
}
