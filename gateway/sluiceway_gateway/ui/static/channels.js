// The list of channels, as the gateway last sent it.

import { send, signInReason } from "./api.js";
import { follow } from "./live.js";
import { PollInstead } from "./stream.js";
import { signal } from "./view.js";

// Lines as in `GET /v1/status`; a new array after each change.
export const channels = signal([]);
export const loaded = signal(false);

function replace(items) {
  channels.value = items;
  loaded.value = true;
}

// The stream has the first page. Where there are more, all of them are read again and again.
function show({ items, next_cursor: cursor }) {
  if (cursor) throw new PollInstead();
  replace(items);
}

// Responses are compressed, events are not.
async function first(signal) {
  const response = await send("status?limit=1000", { signal });
  show(await response.json());
  return response.headers.get("ETag");
}

// The pages as last read, by their cursor; those that have not changed are not sent again.
let pages = new Map();

async function poll(signal) {
  const read = new Map();
  let cursor = "";
  do {
    const old = pages.get(cursor);
    const query = new URLSearchParams({ limit: 1000, ...(cursor && { cursor }) });
    const headers = old ? { "If-None-Match": old.etag } : {};
    const response = await send(`status?${query}`, { signal, headers });
    const page = response.status === 304 ? old : { ...(await response.json()), etag: response.headers.get("ETag") };
    read.set(cursor, page);
    cursor = page.next_cursor;
  } while (cursor);
  const changed = read.size !== pages.size || [...read].some(([key, page]) => pages.get(key) !== page);
  pages = read;
  if (changed) replace([...read.values()].flatMap(({ items }) => items));
}

export function followChannels() {
  pages = new Map();
  return follow({
    stream: "status/events?limit=1000",
    first,
    onEvent: ({ data }) => show(JSON.parse(data)),
    poll,
    onGone: (error) => {
      if (error.status !== 401) signInReason.value = error.message;
    },
  });
}
