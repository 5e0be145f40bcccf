// Data of a part of a view, read once and again on request.

import { getJson } from "./api.js";
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

const base = (path) => path.split("?", 1)[0];

// The view of the data, or the error.
export function Loaded({ resource: { data, error, reload }, children }) {
  if (error) {
    return html`<p class="notice" role="alert">${error.message} <button onClick=${reload}>Try again</button></p>`;
  }
  return data ? children(data) : html`<p class="loading">Loading</p>`;
}

// A library that is loaded when it is first needed: its signal, null until then, and the function that loads it.
export function lazy(read) {
  const library = signal(null);
  let loading = null;
  const load = () => {
    loading ??= read().then(
      (found) => {
        library.value = found;
      },
      () => {
        // The next view tries again.
        loading = null;
      },
    );
  };
  return [library, load];
}
