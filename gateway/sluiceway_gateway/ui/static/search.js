// Messages that the gateway finds, as they come: a search of all messages, or the new ones, live.

import { channelPath, NoResponse } from "./api.js";
import { whole } from "./format.js";
import { parseExact } from "./json.js";
import { ForAll, MessageTable, textOf } from "./listing.js";
import { paused } from "./live.js";
import { readLines } from "./stream.js";
import { html, useEffect, useRef, useState } from "./view.js";

// Of new messages, the latest are kept.
const MAX_LIVE = 500;
const SHOW_MS = 200;

const known = new WeakMap();
const texts = {
  get(message) {
    if (!known.has(message)) known.set(message, textOf(message));
    return known.get(message);
  },
};

// The parameters of the request for a view of the URL.
export function searchParameters({ q, regex, field, partition, since, until, order, limit = "50", uncommitted }, { live, exact }) {
  const all = {
    [regex ? "regex" : "text"]: q,
    field,
    partition,
    ...(live ? { follow: "true" } : { since, until, limit, start: order }),
    ...(exact && uncommitted && { uncommitted: "true" }),
  };
  return Object.fromEntries(Object.entries(all).filter(([, value]) => value));
}

// Search when `run` changes, with the parameters of that moment.
export function Search({ name, status, parameters, run, live, flagged, onWritten }) {
  const [state, setState] = useState({ items: [], progress: null, running: true });
  const current = useRef(null);
  const ran = useRef(null);
  const { items, progress, running, end, error } = state;

  async function search(cursor) {
    const abort = new AbortController();
    current.current?.abort();
    current.current = abort;
    let shown = cursor ? items : [];
    let arrived = [];
    let latest = null;
    let timer = null;
    function show(result) {
      clearTimeout(timer);
      timer = null;
      if (current.current !== abort) return;
      if (live && paused.value && !result) {
        arrived = arrived.slice(-MAX_LIVE);
        timer = setTimeout(show, SHOW_MS);
        return;
      }
      shown = live ? [...arrived.toReversed(), ...shown].slice(0, MAX_LIVE) : [...shown, ...arrived];
      arrived = [];
      setState({ items: shown, progress: latest, running: !result, ...result });
    }
    function onLine(line) {
      const { message, progress: part, end: last } = parseExact(line);
      if (message) arrived.push(message);
      if (part) latest = part;
      timer ??= setTimeout(show, SHOW_MS);
      return last;
    }
    show();
    try {
      let following = cursor;
      for (;;) {
        const query = new URLSearchParams(following ? continued(ran.current, following) : ran.current);
        let last = null;
        await readLines(`${channelPath(name, "messages", "search")}?${query}`, {
          signal: abort.signal,
          onLine: (line) => {
            last = onLine(line) ?? last;
          },
        });
        if (!last) throw new NoResponse("The gateway's response broke off.");
        following = live && last.reason === "time" ? last.next_cursor : null;
        if (!following) return show({ end: last });
      }
    } catch (failure) {
      return show(abort.signal.aborted ? { end: { reason: "cancelled" } } : { error: failure });
    }
  }

  useEffect(() => {
    // A continuation has them, too: the form may have other ones by then.
    ran.current = parameters;
    search(null);
    return () => {
      const ended = current.current;
      current.current = null;
      ended?.abort();
    };
  }, [run]);

  const failed = error?.message ?? (["error", "stopped"].includes(end?.reason) ? (end.message ?? "The gateway stops.") : null);
  const further = end?.next_cursor && !live && html` <button onClick=${() => search(end.next_cursor)}>Search on</button>`;
  return html`
    <div class="tools">
      ${running && html`<button onClick=${() => current.current.abort()}>Stop</button>`}
      ${running && !live && html`<progress aria-label="Searched" value=${progress?.passed} max=${progress?.total || 1}></progress>`}
      <span class="hint" role=${running ? undefined : "status"}>${summary({ items, progress, running, end, live })}${further}</span>
    </div>
    ${failed && html`<p class="notice" role="alert">${failed} <button onClick=${() => search(end?.next_cursor ?? null)}>Try again</button></p>`}
    ${items.length > 0 && html`<${MessageTable} name=${name} status=${status} items=${items} texts=${texts} flagged=${flagged} onWritten=${onWritten} />
      <div class="buttons start"><${ForAll} name=${name} items=${items} /></div>`}`;
}

// A cursor has the partitions and the order.
function continued({ partition: _partition, start: _start, ...rest }, cursor) {
  return { ...rest, cursor };
}

const BOUNDS = { messages: "so many messages", bytes: "1 GiB", time: "a minute" };

function summary({ items, progress, running, end, live }) {
  const count = `${whole(items.length)} ${items.length === 1 ? "match" : "matches"}`;
  const searched = progress ? ` in ${whole(progress.scanned)} messages` : "";
  if (live) return running ? `New messages appear here, ${items.length < MAX_LIVE ? count : `the latest ${whole(MAX_LIVE)}`}${searched}.` : `Stopped: ${count}.`;
  if (running) return `${count}${searched}`;
  const parts = [`${count}${searched}.`];
  if (end?.reason === "limit") parts.push("There may be more.");
  if (end?.reason in BOUNDS) parts.push(`A search ends after ${BOUNDS[end.reason]}.`);
  if (end?.reason === "cancelled") parts.push("Stopped.");
  if (end?.partitions_left_out) parts.push(`${whole(end.partitions_left_out)} further partitions have messages: give one.`);
  if (end?.partitions_unavailable?.length) parts.push(`Without ${whole(end.partitions_unavailable.length)} partitions, whose leaders do not answer.`);
  return parts.join(" ");
}
