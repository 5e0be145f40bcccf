// The list of channels, as the gateway last sent it.

import { send, setServerTime } from "./api.js";
import { follow } from "./live.js";
import { signInReason } from "./token.js";
import { effect, signal } from "./view.js";

// Lines as in `GET /v1/status`; a new array after each change.
export const channels = signal([]);
export const loaded = signal(false);

const source = {
  stream: "status/events",
  onEvent,
  poll,
  onGone: (error) => {
    if (error.status !== 401) signInReason.value = error.message;
  },
};

// The lines by name. Those that do not change stay the same objects.
let lines = new Map();

function show() {
  channels.value = [...lines.values()];
  loaded.value = true;
}

// The next token may permit other channels.
effect(() => {
  if (signInReason.value === null) return;
  lines = new Map();
  channels.value = [];
  loaded.value = false;
  source.receivedAt = null;
  source.hasData = false;
});

const byName = (items) => new Map(items.map((line) => [line.channel.name, line]));

// A `state` has all lines; a `change` those that changed, and the names of channels that are gone.
function onEvent({ event, data }) {
  const { at, items, changed = [], removed = [] } = JSON.parse(data);
  setServerTime(Date.parse(at));
  if (event === "state") lines = byName(items);
  for (const line of changed) lines.set(line.channel.name, line);
  for (const name of removed) lines.delete(name);
  show();
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
  if (!changed) return;
  lines = byName([...read.values()].flatMap(({ items }) => items));
  show();
}

export function followChannels() {
  pages = new Map();
  // The stream begins with all lines again.
  source.lastId = null;
  return follow(source);
}
