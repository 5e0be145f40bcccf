// Messages: the newest, or those from an offset or a time on, with their records as JSON.

import { writeAction } from "./actions.js";
import { channelPath, getText } from "./api.js";
import { dateTime, instant, isUnknown, localTime, Text, whole } from "./format.js";
import { jsonText, parseExact, visible } from "./json.js";
import { Loaded, useResource } from "./resource.js";
import { href, route, setQuery } from "./router.js";
import { State } from "./states.js";
import { html, useEffect, useMemo, useState } from "./view.js";

const STARTS = { latest: "newest first", earliest: "oldest first", offset: "from an offset on", time: "from a time on" };
const LIMITS = [20, 50, 100, 500];
const SHOWN_CHARACTERS = 300;

const readMessages = async (path, options) => parseExact(await getText(path, options));

export function Messages({ name, status }) {
  const [again, setAgain] = useState(0);
  const [written, setWritten] = useState(null);
  const { query } = route.value;
  const exact = status.channel.delivery === "exactly_once";
  const { path, hint } = requestOf(name, query, exact);
  const onWritten = (answer) => {
    setWritten(answer);
    setAgain((old) => old + 1);
  };
  return html`<${Controls} query=${query} exact=${exact} partitions=${status.partitions.length} onRefresh=${() => setAgain((old) => old + 1)} write=${writeAction(name, status, { onWritten })} />
    ${written && html`<p role="status" class="hint">${writtenText(written)}</p>`}
    ${hint ? html`<p class="empty">${hint}</p>` : html`<${Page} name=${name} status=${status} path=${path} again=${again} query=${query} exact=${exact} onWritten=${onWritten} />`}`;
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

function Controls({ query, exact, partitions, onRefresh, write }) {
  const { start = "latest" } = query;
  const change = (changes) => setQuery({ cursor: "", ...changes });
  return html`<form class="tools" aria-label="Which messages" onSubmit=${(event) => {
    event.preventDefault();
    onRefresh();
  }}>
    <label>Show <select value=${start} onChange=${({ target }) => change({ start: target.value })}>
      ${Object.entries(STARTS).map(([id, text]) => html`<option value=${id}>${text}</option>`)}</select></label>
    <label>Partition <${Typed} type="number" class="short" min="0" max=${partitions ? partitions - 1 : undefined} placeholder="all" value=${query.partition ?? ""} onTyped=${(partition) => change({ partition })} /></label>
    ${start === "offset" && html`<label>Offset <${Typed} type="number" class="middle" min="0" value=${query.offset ?? ""} onTyped=${(offset) => change({ offset })} /></label>`}
    ${start === "time" && html`<label>Time <${Typed} type="datetime-local" step="1" value=${query.since ? localTime(query.since) : ""} onTyped=${(time) => change({ since: instant(time) })} /></label>`}
    <label>At most <select value=${query.limit ?? "50"} onChange=${({ target }) => change({ limit: target.value })}>
      ${LIMITS.map((each) => html`<option value=${each}>${each}</option>`)}</select></label>
    ${exact && html`<label class="check"><input type="checkbox" checked=${Boolean(query.uncommitted)} onChange=${({ target }) => change({ uncommitted: target.checked ? "1" : "" })} /> Uncommitted too</label>`}
    <button class="primary">Refresh</button>
    ${write && html`<button type="button" disabled=${write.disabled} onClick=${write.onClick}>${write.title}</button>`}
    <label class="filter"><span class="sr">Find in these messages</span><input type="search" placeholder="Find in these messages" value=${query.find ?? ""} onInput=${({ target }) => setQuery({ find: target.value }, { replace: true })} /></label>
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
  return html`<${Loaded} resource=${resource}>${(page) => html`<${Found} name=${name} status=${status} page=${page} query=${query} exact=${exact} onWritten=${onWritten} />`}</>`;
}

function Found({ name, status, page, query, exact, onWritten }) {
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
    ${items.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="List of messages"><table class="messages">
      <thead><tr><th scope="col" class="numeric">Partition</th><th scope="col" class="numeric">Offset</th><th scope="col">Time</th><th scope="col">Key</th><th scope="col">Value</th>
        ${flagged && html`<th scope="col">Visible</th>`}<th scope="col"><span class="sr">Details</span></th></tr></thead>
      <tbody>${items.map((each) => html`<${Message} key=${`${each.partition}/${each.offset}`} name=${name} status=${status} message=${each} text=${texts.get(each)} flagged=${flagged} onWritten=${onWritten} />`)}</tbody>
    </table></div>`}
    <div class="buttons start">
      ${page.next_cursor && html`<a class="button" href=${href(["channels", name], { ...tab, cursor: page.next_cursor })}>${newest ? "Older messages" : "Later messages"}</a>`}
      ${query.cursor && html`<a href=${href(["channels", name], { ...tab, cursor: "" })}>Back to the first page</a>`}
      ${items.length > 0 && html`<${Copy} title="Copy all as JSON" text=${() => jsonText(items, 2)} />`}
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

// The text of a message's value in one line.
function textOf({ records, raw, error, record_count: count }) {
  if (raw !== null && (error === null || raw.encoding === "utf-8")) return visible(raw.data);
  if (error !== null) return raw === null ? "" : raw.data;
  return jsonText(count > 1 ? records : (records[0] ?? null));
}

const shortText = (text) => (text.length > SHOWN_CHARACTERS ? `${text.slice(0, SHOWN_CHARACTERS)}…` : text);

function Message({ name, status, message, text, flagged, onWritten }) {
  const [open, setOpen] = useState(false);
  const { partition, offset, timestamp, key, error, record_count: count, committed } = message;
  return html`<tr>
    <td class="numeric">${partition}</td><th scope="row" class="numeric">${String(offset)}</th>
    <td>${isUnknown(timestamp) ? "none" : html`<time datetime=${timestamp} title=${timestamp}>${dateTime(timestamp)}</time>`}</td>
    <td>${key === null ? html`<span class="unknown">none</span>` : html`<${Text} value=${shortText(visible(key.data))} />`}</td>
    <td class="value">${error !== null && html`<${State} kind="error" word="Cannot be decoded" /> `}${count > 1 && html`<span class="hint">${whole(count)} records </span>`}<bdi class="text code">${shortText(text)}</bdi></td>
    ${flagged && html`<td>${committed === null ? "unknown" : html`<${State} kind=${committed ? "good" : "warning"} word=${committed ? "Committed" : "Uncommitted"} />`}</td>`}
    <td class="actions"><button class="disclosure" aria-expanded=${open} onClick=${() => setOpen(!open)}>Details<span class="sr"> of offset ${String(offset)}</span></button></td>
  </tr>
  ${open && html`<tr class="details"><td colspan=${flagged ? 7 : 6}><${Details} name=${name} status=${status} message=${message} onWritten=${onWritten} /></td></tr>`}`;
}

function Details({ name, status, message, onWritten }) {
  const { key, headers, schema, records, raw, error, truncated } = message;
  const [first] = records;
  // A record of bytes is the value once more, in base64.
  const asRecords = records.length > 0 && raw === null;
  const write = first === undefined || truncated.length ? null : writeAction(name, status, { onWritten, record: first, key });
  return html`<dl class="values">
      <div><dt>Size</dt><dd>${whole(message.size_bytes)} bytes</dd></div>
      ${schema && html`<div><dt>Schema</dt><dd><a href=${href(["channels", name], { tab: "schema", version: schema.version })}>version ${schema.version}</a>, id ${schema.id}</dd></div>`}
      ${message.timestamp && html`<div><dt>Time by</dt><dd>${message.timestamp_type === "append" ? "the broker" : "its writer"}</dd></div>`}
      ${key && html`<div><dt>Key</dt><dd><${Bytes} value=${key} /></dd></div>`}
      ${headers.map((each) => html`<div><dt><${Text} value=${visible(each.name)} /></dt><dd>${each.value === null ? "none" : html`<${Bytes} value=${each.value} />`}</dd></div>`)}
    </dl>
    ${error !== null && html`<p class="notice">It cannot be decoded: <bdi>${visible(error)}</bdi></p>`}
    ${truncated.length > 0 && html`<p class="hint">Large values are cut. <a href=${href(["channels", name], { tab: "messages", start: "offset", partition: message.partition, offset: message.offset, limit: 1, uncommitted: isUnknown(message.committed) ? "" : "1" })}>Show this message alone</a></p>`}
    ${asRecords && message.record_count > records.length && html`<p class="hint">The first ${whole(records.length)} of ${whole(message.record_count)} records.</p>`}
    ${asRecords && html`<pre tabindex="0" dir="ltr">${records.map((each) => `${jsonText(each, 2)}\n`)}</pre>`}
    ${raw !== null && html`<p class="hint">Value, ${raw.encoding === "utf-8" ? "as text" : "in base64"}${raw.truncated ? ", its beginning" : ""}</p><pre tabindex="0" dir="ltr">${valueText(raw)}</pre>`}
    <div class="buttons start">
      ${raw !== null && html`<${Copy} title="Copy value" text=${() => raw.data} />`}
      ${asRecords && html`<${Copy} title=${records.length > 1 ? "Copy records" : "Copy record"} text=${() => jsonText(records.length > 1 ? records : first, 2)} />`}
      <${Copy} title="Copy message" text=${() => jsonText(message, 2)} />
      ${write && html`<button disabled=${write.disabled} onClick=${write.onClick}>Change and write…</button>`}
    </div>`;
}

// A value's text, in lines if it is JSON.
function valueText({ encoding, data, truncated }) {
  if (encoding === "utf-8" && !truncated && /^\s*[[{]/.test(data)) {
    try {
      return jsonText(parseExact(data), 2);
    } catch {
      // Shown as it is.
    }
  }
  return visible(data);
}

function Bytes({ value: { encoding, data, truncated } }) {
  return html`<${Text} value=${visible(data)} />${encoding === "base64" && html` <span class="hint">base64</span>`}${truncated && html` <span class="hint">cut</span>`}`;
}

function Copy({ title, text }) {
  const [done, setDone] = useState("");
  async function copy() {
    try {
      await navigator.clipboard.writeText(text());
      setDone("Copied");
    } catch {
      // Browsers allow it on pages of HTTPS or of this machine.
      setDone("The browser does not allow it: select the text");
    }
  }
  return html`<span class="copy"><button onClick=${copy}>${title}</button> <span class="hint" role="status">${done}</span></span>`;
}
