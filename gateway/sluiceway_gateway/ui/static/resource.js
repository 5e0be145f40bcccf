// Data of a part of a view, read once and again on request.

import { getJson } from "./api.js";
import { whole } from "./format.js";
import { isReading } from "./live.js";
import { html, signal, useEffect, useState } from "./view.js";

// Return { data, error, reload } of a path; reads it again when `path` or `version` changes. With another
// query, the old data is shown until the new one is there. `read` gives the data of a path.
export function useResource(path, version = 0, read = getJson) {
  const [found, setFound] = useState({ path, data: null, error: null });
  const [again, setAgain] = useState(0);
  useEffect(() => {
    const abort = new AbortController();
    read(path, { signal: abort.signal }).then(
      (data) => setFound({ path, data, error: null }),
      (error) => abort.signal.aborted || setFound((old) => ({ ...old, path, error })),
    );
    return () => abort.abort();
  }, [path, version, again]);
  const { data, error } = base(found.path) === base(path) ? found : { data: null, error: null };
  return { data, error, reload: () => setAgain((old) => old + 1) };
}

// A number that grows every `ms` while the page reads: the version of a resource whose changes are no events.
export function useVersion(ms) {
  const [version, setVersion] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => isReading() && setVersion((old) => old + 1), ms);
    return () => clearInterval(timer);
  }, [ms]);
  return version;
}

// The most entries that the gateway lists at once.
const MAX_ENTRIES = 1_000;

// The number of a list's newest entries to read, and the hint below a list that was cut.
export function useNewest(first) {
  const [limit, setLimit] = useState(first);
  const hint = (shown) =>
    shown >= limit &&
    html`<p class="hint">The newest ${whole(shown)}.
      ${limit < MAX_ENTRIES ? html` <button onClick=${() => setLimit(MAX_ENTRIES)}>Show up to ${whole(MAX_ENTRIES)}</button>` : " Earlier ones are in the HTTP API."}</p>`;
  return { limit, hint };
}

const base = (path) => path.split("?", 1)[0];

// The view of the data, or the error; with `keep`, the error and the data that was read before.
export function Loaded({ resource: { data, error, reload }, keep = false, children }) {
  const shown = data && (keep || !error);
  return html`${error && html`<p class="notice" role="alert">${error.message} <button onClick=${reload}>Try again</button></p>`}
    ${shown ? children(data) : !error && html`<p class="loading">Loading</p>`}`;
}

// A part of the page that is loaded when it is first needed: its signal, null until then, the function that
// loads it, and the signal whether that failed.
export function lazy(read) {
  const part = signal(null);
  const failed = signal(false);
  let loading = null;
  const load = () => {
    failed.value = false;
    return (loading ??= read().then(
      (found) => {
        part.value = found;
      },
      () => {
        // The next view tries again.
        loading = null;
        failed.value = true;
      },
    ));
  };
  return [part, load, failed];
}

// In place of a part that is not loaded.
export function NotLoaded({ failed, text = "Loading" }) {
  if (!failed.value) return html`<p class="loading">${text}</p>`;
  // Browsers may remember a module that failed until the page is loaded again.
  return html`<p class="notice" role="alert">A part of the page cannot be loaded: the gateway does not answer, or has
    another version now. <button onClick=${() => location.reload()}>Reload the page</button></p>`;
}
