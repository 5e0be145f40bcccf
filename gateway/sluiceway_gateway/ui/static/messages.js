// Messages: the newest, those from an offset or a time on, those that a search finds, or new ones, live.

import { writeAction } from "./actions.js";
import { channelPath, getJson, getText } from "./api.js";
import { instant, localTime, Text, whole } from "./format.js";
import { parseExact } from "./json.js";
import { ForAll, MessageTable, textOf } from "./listing.js";
import { Loaded, useResource } from "./resource.js";
import { href, route, setQuery } from "./router.js";
import { Search, searchParameters } from "./search.js";
import { html, useEffect, useMemo, useState } from "./view.js";

const STARTS = {
  latest: "newest first",
  earliest: "oldest first",
  offset: "from an offset on",
  time: "from a time on",
  search: "those that contain…",
  live: "new ones, live",
};
const LIMITS = [20, 50, 100, 500];

const readMessages = async (path, options) => parseExact(await getText(path, options));

export function Messages({ name, status }) {
  const [again, setAgain] = useState(0);
  const [written, setWritten] = useState(null);
  const { query } = route.value;
  const exact = status.channel.delivery === "exactly_once";
  const searches = ["search", "live"].includes(query.start);
  const { path, hint } = searches ? {} : requestOf(name, query, exact);
  const onWritten = (answer) => {
    setWritten(answer);
    if (!searches) setAgain((old) => old + 1);
  };
  return html`<${Controls} name=${name} query=${query} exact=${exact} searches=${searches} partitions=${status.partitions.length} onRefresh=${() => setAgain((old) => old + 1)} write=${writeAction(name, status, { onWritten })} />
    ${written && html`<p role="status" class="hint">${writtenText(written)}</p>`}
    ${searches
      ? html`<${Found} key=${query.start} name=${name} status=${status} query=${query} exact=${exact} run=${again} onWritten=${setWritten} />`
      : hint ? html`<p class="empty">${hint}</p>` : html`<${Page} name=${name} status=${status} path=${path} again=${again} query=${query} exact=${exact} onWritten=${onWritten} />`}`;
}

function Found({ name, status, query, exact, run, onWritten }) {
  const live = query.start === "live";
  const flagged = exact && Boolean(query.uncommitted);
  return html`<${Search} name=${name} status=${status} parameters=${searchParameters(query, { live, exact })} run=${run} live=${live} flagged=${flagged} onWritten=${onWritten} />`;
}

// The request of the URL, or a hint at a missing parameter.
function requestOf(name, { start = "latest", partition, offset, since, limit = "50", uncommitted, cursor }, exact) {
  const parameters = new URLSearchParams({ limit });
  if (exact && uncommitted) parameters.set("uncommitted", "true");
  if (cursor) {
    parameters.set("cursor", cursor);
  } else {
    if (partition) parameters.set("partition", partition);
    if (start === "earliest") parameters.set("start", "earliest");
    if (start === "offset") {
      if (!partition || !offset) return { hint: "Give a partition and an offset." };
      parameters.set("offset", offset);
    }
    if (start === "time") {
      if (!since) return { hint: "Give a time." };
      parameters.set("since", since);
    }
  }
  return { path: `${channelPath(name, "messages")}?${parameters}` };
}

// What is typed for a search is in the URL at once, so that a search that is then started has it.
const typed = (changes) => setQuery(changes, { replace: true });

function SearchControls({ name, query, live }) {
  const { data } = useResource(channelPath(name), 0, getJson);
  const fields = (data?.spec.schema?.fields ?? []).map((field) => field.name);
  return html`<label class="filter"><span class="sr">Text or expression</span><${Typed} type="search" aria-keyshortcuts="/" placeholder=${query.regex ? "Regular expression (RE2)" : "Text, in any case"} value=${query.q ?? ""} onTyped=${(q) => typed({ q })} /></label>
    <label class="check"><input type="checkbox" checked=${Boolean(query.regex)} onChange=${({ target }) => typed({ regex: target.checked ? "1" : "" })} /> Regular expression</label>
    <label>In <${Typed} class="middle" list="fields" placeholder="any field" value=${query.field ?? ""} onTyped=${(field) => typed({ field })} /></label>
    <datalist id="fields">${[...fields, "@key"].map((field) => html`<option value=${field} />`)}</datalist>
    ${!live && html`<label>From <${Typed} type="datetime-local" step="1" value=${query.since ? localTime(query.since) : ""} onTyped=${(time) => typed({ since: instant(time) })} /></label>
    <label>To <${Typed} type="datetime-local" step="1" value=${query.until ? localTime(query.until) : ""} onTyped=${(time) => typed({ until: instant(time) })} /></label>
    <label class="check"><input type="checkbox" checked=${query.order === "earliest"} onChange=${({ target }) => typed({ order: target.checked ? "earliest" : "" })} /> Oldest first</label>`}`;
}

function Controls({ name, query, exact, searches, partitions, onRefresh, write }) {
  const { start = "latest" } = query;
  const live = start === "live";
  const change = (changes) => setQuery({ cursor: "", ...changes }, { replace: searches && !changes.start });
  return html`<form class="tools" aria-label="Which messages" onSubmit=${(event) => {
    event.preventDefault();
    onRefresh();
  }}>
    <label>Show <select value=${start} onChange=${({ target }) => change({ start: target.value })}>
      ${Object.entries(STARTS).map(([id, text]) => html`<option value=${id}>${text}</option>`)}</select></label>
    <label>Partition <${Typed} type="number" class="short" min="0" max=${partitions ? partitions - 1 : undefined} placeholder="all" value=${query.partition ?? ""} onTyped=${(partition) => change({ partition })} /></label>
    ${start === "offset" && html`<label>Offset <${Typed} type="number" class="middle" min="0" value=${query.offset ?? ""} onTyped=${(offset) => change({ offset })} /></label>`}
    ${start === "time" && html`<label>Time <${Typed} type="datetime-local" step="1" value=${query.since ? localTime(query.since) : ""} onTyped=${(time) => change({ since: instant(time) })} /></label>`}
    ${searches && html`<${SearchControls} name=${name} query=${query} live=${live} />`}
    ${!live && html`<label>At most <select value=${query.limit ?? "50"} onChange=${({ target }) => change({ limit: target.value })}>
      ${LIMITS.map((each) => html`<option value=${each}>${each}</option>`)}</select></label>`}
    ${exact && html`<label class="check"><input type="checkbox" checked=${Boolean(query.uncommitted)} onChange=${({ target }) => change({ uncommitted: target.checked ? "1" : "" })} /> Uncommitted too</label>`}
    <button class="primary">${live ? "Follow" : searches ? "Search" : "Refresh"}</button>
    ${write && html`<button type="button" disabled=${write.disabled} onClick=${write.onClick}>${write.title}</button>`}
    ${!searches && html`<label class="filter"><span class="sr">Find in these messages</span><input type="search" placeholder="Find in these messages ( / )" aria-keyshortcuts="/" value=${query.find ?? ""} onInput=${({ target }) => setQuery({ find: target.value }, { replace: true })} /></label>`}
  </form>`;
}

// An input that keeps unfinished text while the view around it changes.
function Typed({ value, onTyped, ...rest }) {
  const [draft, setDraft] = useState(null);
  useEffect(() => setDraft(null), [value]);
  return html`<input ...${rest} value=${draft ?? value} onInput=${({ target }) => setDraft(target.value)} onChange=${({ target }) => onTyped(target.value)} />`;
}

function writtenText({ messages, batch }) {
  if (batch?.replayed) return html`Nothing was written: the batch <${Text} value=${batch.key} /> was committed before.`;
  const places = messages.slice(0, 5).map(({ partition, offset }) => `partition ${partition}, offset ${offset}`);
  const more = messages.length > 5 ? ` and ${whole(messages.length - 5)} more` : "";
  return `Written: ${places.join("; ")}${more}.`;
}

function Page({ name, status, path, again, query, exact, onWritten }) {
  const resource = useResource(path, again, readMessages);
  return html`<${Loaded} resource=${resource}>${(page) => html`<${Listed} name=${name} status=${status} page=${page} query=${query} exact=${exact} onWritten=${onWritten} />`}</>`;
}

function Listed({ name, status, page, query, exact, onWritten }) {
  const newest = page.order === "newest_first";
  const words = (query.find ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const texts = useMemo(() => new Map(page.items.map((each) => [each, textOf(each)])), [page]);
  const items = page.items.filter((each) => {
    const text = `${each.key?.data ?? ""} ${texts.get(each)}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  const flagged = exact && Boolean(query.uncommitted);
  const tab = { ...query, tab: "messages" };
  return html`
    <p class="hint" role="status">${countText(page, items, newest)}</p>
    ${items.length > 0 && html`<${MessageTable} name=${name} status=${status} items=${items} texts=${texts} flagged=${flagged} onWritten=${onWritten} />`}
    <div class="buttons start">
      ${page.next_cursor && html`<a class="button" href=${href(["channels", name], { ...tab, cursor: page.next_cursor })}>${newest ? "Older messages" : "Later messages"}</a>`}
      ${query.cursor && html`<a href=${href(["channels", name], { ...tab, cursor: "" })}>Back to the first page</a>`}
      ${items.length > 0 && html`<${ForAll} name=${name} items=${items} />`}
    </div>`;
}

function countText(page, items, newest) {
  const { length } = page.items;
  const found = items.length === length ? whole(length) : `${whole(items.length)} of ${whole(length)}`;
  const parts = [length ? `${found} ${length === 1 ? "message" : "messages"}, ${newest ? "newest" : "oldest"} first.` : "There are no messages here."];
  if (page.incomplete) parts.push(page.incomplete.message);
  if (page.partitions_left_out) parts.push(`${whole(page.partitions_left_out)} further partitions have messages: give one.`);
  const away = page.partitions_unavailable;
  if (away.length) parts.push(`Without ${away.length === 1 ? `partition ${away[0]}, whose leader does` : `${whole(away.length)} partitions, whose leaders do`} not answer.`);
  return parts.join(" ");
}
