// The overview: current problems first, then the list of channels.

import { mayCreate } from "./account.js";
import { channels, followChannels, loaded } from "./channels.js";
import { ageOf, ago, count, duration, isUnknown, rate, Text, trend, whole } from "./format.js";
import { allProblems, isEnded, Problem } from "./problems.js";
import { lazy, NotLoaded } from "./resource.js";
import { href, route, setQuery } from "./router.js";
import { lineState, State } from "./states.js";
import { VirtualTable } from "./table.js";
import { token } from "./token.js";
import { html, useEffect, useMemo, useState } from "./view.js";

const [editing, loadEditing, editingFailed] = lazy(() => import("./editing.js"));

async function create() {
  await loadEditing();
  editing.value?.askToCreate();
}

const SHOWN_PROBLEMS = 8;
// More are slow to draw, and nobody reads them.
const MAX_PROBLEMS = 200;

export function Overview() {
  useEffect(followChannels, []);
  useEffect(() => {
    document.title = "Channels · Sluiceway";
  }, []);
  if (!loaded.value) return html`<main><h1 class="sr">Channels</h1><p class="loading">Reading the channels</p></main>`;
  return html`<main class="overview">
    <h1 class="sr">Channels</h1>
    <${Problems} />
    <${ChannelList} />
    ${editing.value && html`<${editing.value.Dialog} />`}
    ${editingFailed.value && html`<${NotLoaded} failed=${editingFailed} />`}
  </main>`;
}

function Problems() {
  const all = useMemo(() => allProblems(channels.value), [channels.value]);
  const [open, setOpen] = useState(false);
  const names = new Set(all.map((each) => each.channel)).size;
  const least = channels.value.some((line) => line.more_problems) ? "At least " : "";
  const shown = all.slice(0, open ? MAX_PROBLEMS : SHOWN_PROBLEMS);
  return html`<section class="problems" aria-labelledby="problems">
    <h2 id="problems" aria-live="polite">
      ${all.length
        ? html`<${State} kind=${all[0].fact.severity === "error" ? "error" : "warning"}
            word=${`${least}${whole(all.length)} ${all.length === 1 ? "problem" : "problems"} in ${whole(names)} ${names === 1 ? "channel" : "channels"}`} />`
        : html`<${State} kind="good" word="No problems" />`}
    </h2>
    ${all.length > 0 &&
    html`<ul>
      ${shown.map(({ fact, channel }) => html`<${Problem} key=${`${channel}/${fact.code}/${fact.endpoint ?? fact.batch ?? fact.group}/${fact.index}`} name=${channel} fact=${fact} linked />`)}
    </ul>`}
    ${all.length > SHOWN_PROBLEMS &&
    html`<button onClick=${() => setOpen(!open)} aria-expanded=${open}>
      ${open ? "Show fewer" : all.length > MAX_PROBLEMS ? `Show ${whole(MAX_PROBLEMS)} of ${whole(all.length)}` : `Show all ${whole(all.length)}`}
    </button>`}
  </section>`;
}

const NO_SAMPLE = "Unknown: not sampled yet, or nobody reads";

// A column: its cell, and the value it sorts by. Unknown values come last in either direction.
const COLUMNS = [
  {
    id: "name",
    title: "Channel",
    value: (line) => line.channel.name,
    header: true,
    cell: (line, active) => html`<a href=${href(["channels", line.channel.name])} tabindex=${active ? 0 : -1} data-row-link><${Text} value=${line.channel.name} /></a>
      <span class="labels">${line.channel.delivery === "exactly_once" && html`<span class="label">exactly once</span>`}${Object.entries(line.channel.labels).map(([key, value]) => html`<${Text} class="label" value=${value ? `${key}=${value}` : key} />`)}</span>`,
  },
  {
    id: "state",
    title: "State",
    value: (line) => lineState(line).rank,
    cell: (line) => html`<${State} ...${lineState(line)} />`,
  },
  { id: "writers", title: "Writers", optional: 2, numeric: true, value: (line) => line.writers.live, cell: (line) => counts(line.writers) },
  { id: "readers", title: "Readers", optional: 2, numeric: true, value: (line) => line.readers.live, cell: (line) => counts(line.readers) },
  { id: "lag", title: "Lag", hint: "Messages that the slowest group has not read", numeric: true, value: (line) => line.lag_messages, cell: (line) => count(line.lag_messages, NO_SAMPLE) },
  {
    id: "behind",
    title: "Behind",
    hint: "Age of the oldest message that is not read",
    optional: 1,
    numeric: true,
    value: (line) => line.lag_seconds,
    cell: (line) => duration(line.lag_seconds, { atLeast: line.lag_seconds_at_least, why: NO_SAMPLE }),
  },
  { id: "trend", title: "Trend", hint: "Growth of the largest lag", optional: 2, numeric: true, value: (line) => line.trend, cell: (line) => trend(line.trend, NO_SAMPLE) },
  { id: "written", title: "Written", optional: 1, numeric: true, value: (line) => line.write_rate, cell: (line) => rate(line.write_rate, "Unknown: not sampled yet") },
  { id: "read", title: "Read", hint: "By all groups together", optional: 2, numeric: true, value: (line) => line.read_rate, cell: (line) => rate(line.read_rate, NO_SAMPLE) },
  { id: "heartbeat", title: "Heartbeat", hint: "In time: all writers and readers that are open send heartbeats. Else the age of the last heartbeat of any", optional: 2, numeric: true, value: silence, cell: heartbeat },
];

// Heartbeats in time make no new line, so their age would be too high.
const LATE = ["suspect", "writer_lost", "reader_lost"];
const beats = ({ writers, readers, last_heartbeat_at: at }) => writers.live + readers.live > 0 && !isUnknown(at);
const late = ({ problems }) => problems.filter((problem) => LATE.includes(problem.code) && !isEnded(problem));

function silence(line) {
  if (!beats(line)) return isUnknown(line.last_heartbeat_at) ? null : ageOf(line.last_heartbeat_at);
  return Math.max(0, ...late(line).map(({ since }) => ageOf(since)));
}

function heartbeat(line) {
  if (!beats(line)) return ago(line.last_heartbeat_at, "None yet");
  return late(line).length ? "some late" : "in time";
}

function counts({ live, lost, failed }) {
  const worse = [[lost, "lost"], [failed, "failed"]].filter(([number]) => number > 0).map(([number, word]) => `${whole(number)} ${word}`);
  return worse.length ? html`<span title=${`${whole(live)} live, ${worse.join(", ")}`}>${whole(live)} <span class="worse">${worse.join(" ")}</span></span>` : whole(live);
}

const collator = new Intl.Collator(undefined, { numeric: true });

// Places of names in the order of the locale. Comparing names is slow, and they seldom change.
let places = new Map();

function placesOf(lines) {
  if (places.size !== lines.length || !lines.every(({ channel }) => places.has(channel.name))) {
    const names = lines.map(({ channel }) => channel.name).sort(collator.compare);
    places = new Map(names.map((name, place) => [name, place]));
  }
  return places;
}

function sorted(lines, column, descending) {
  const placeOf = placesOf(lines);
  const keyed = lines.map((line) => {
    const place = placeOf.get(line.channel.name);
    return { line, place, key: column.id === "name" ? place : column.value(line) };
  });
  const sign = descending ? -1 : 1;
  keyed.sort((a, b) => {
    const unknown = isUnknown(a.key) - isUnknown(b.key);
    return unknown || sign * ((a.key > b.key) - (a.key < b.key)) || a.place - b.place;
  });
  return keyed.map(({ line }) => line);
}

// Words are parts of names or labels; all of them must be found.
function filtered(lines, filter, only) {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  return lines.filter((line) => {
    if (only === "problems" && !line.problems.length) return false;
    if (!words.length) return true;
    const known = searchText(line);
    return words.every((word) => known.includes(word));
  });
}

const searchTexts = new WeakMap();

function searchText(line) {
  let found = searchTexts.get(line);
  if (found === undefined) {
    const labels = Object.entries(line.channel.labels).map(([key, value]) => `${key}=${value}`);
    found = [line.channel.name, ...labels].join("\n").toLowerCase();
    searchTexts.set(line, found);
  }
  return found;
}

// The row and the scroll position at which the list was left, by its filter and sorting, for the way back.
let place = {};

function leftAt(view) {
  if (place.view !== view) place = { view };
  return place;
}

function ChannelList() {
  const { filter = "", only = "", sort = "state" } = route.value.query;
  const descending = sort.startsWith("-");
  const column = COLUMNS.find((each) => each.id === sort.replace("-", "")) ?? COLUMNS[1];
  const all = channels.value;
  const ordered = useMemo(() => sorted(all, column, descending), [all, column, descending]);
  const rows = useMemo(() => filtered(ordered, filter, only), [ordered, filter, only]);
  return html`<section class="list" aria-labelledby="channels">
    <div class="tools">
      <h2 id="channels">Channels</h2>
      <label class="filter"><span class="sr">Filter by name or label</span>
        <input type="search" placeholder="Filter by name or label ( / )" aria-keyshortcuts="/" value=${filter}
          onInput=${(event) => setQuery({ filter: event.target.value }, { replace: true })} />
      </label>
      <label class="check"><input type="checkbox" checked=${only === "problems"}
          onChange=${(event) => setQuery({ only: event.target.checked ? "problems" : "" })} /> with problems only</label>
      <span class="count" role="status">${rows.length === all.length
          ? `${whole(all.length)} ${all.length === 1 ? "channel" : "channels"}`
          : `${whole(rows.length)} of ${whole(all.length)} channels`}</span>
      ${mayCreate() && html`<button onClick=${create}>Create a channel…</button>`}
    </div>
    ${all.length === 0
      ? html`<p class="empty">${token.value ? "There are no channels that this token may see." : "There are no channels yet."} <code>sluiceway channels create NAME --schema FILE</code> creates one.</p>`
      : html`<${VirtualTable} label="Channels" columns=${COLUMNS} rows=${rows} keyOf=${(line) => line.channel.name}
          sort=${column.id} descending=${descending} left=${leftAt([filter, only, sort].join("\n"))}
          onSort=${(id) => setQuery({ sort: id === column.id && !descending ? `-${id}` : id })} />`}
  </section>`;
}
