// Messages as a table, each with its details, and what can be done with them: copy, download, write again.

import { writeAction } from "./actions.js";
import { dateTime, isUnknown, Text, whole } from "./format.js";
import { jsonText, parseExact, visible } from "./json.js";
import { href } from "./router.js";
import { State } from "./states.js";
import { html, useState } from "./view.js";

const SHOWN_CHARACTERS = 300;

// `texts` has the text of each message's value. `flagged`: with a column for whether they are committed.
export function MessageTable({ name, status, items, texts, flagged, onWritten }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label="List of messages"><table class="messages">
    <thead><tr><th scope="col" class="numeric">Partition</th><th scope="col" class="numeric">Offset</th><th scope="col">Time</th><th scope="col">Key</th><th scope="col">Value</th>
      ${flagged && html`<th scope="col">Visible</th>`}<th scope="col"><span class="sr">Details</span></th></tr></thead>
    <tbody>${items.map((each) => html`<${Message} key=${`${each.partition}/${each.offset}`} name=${name} status=${status} message=${each} text=${texts.get(each)} flagged=${flagged} onWritten=${onWritten} />`)}</tbody>
  </table></div>`;
}

// Buttons for all of the listed messages.
export function ForAll({ name, items }) {
  return html`<${Copy} title="Copy all as JSON" text=${() => jsonText(items, 2)} />
    <button onClick=${() => download(`${name}.jsonl`, items)}>Download as JSON lines</button>`;
}

function download(file, items) {
  const lines = items.map((each) => `${jsonText(each)}\n`);
  const address = URL.createObjectURL(new Blob(lines, { type: "application/jsonl" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = file;
  link.click();
  URL.revokeObjectURL(address);
}

// The text of a message's value in one line.
export function textOf({ records, raw, error, deleted, record_count: count }) {
  if (deleted) return "";
  if (raw !== null && (error === null || raw.encoding === "utf-8")) return visible(raw.data);
  if (error !== null) return raw === null ? "" : raw.data;
  return jsonText(count > 1 ? records : (records[0] ?? null));
}

const shortText = (text) => (text.length > SHOWN_CHARACTERS ? `${text.slice(0, SHOWN_CHARACTERS)}…` : text);

function Message({ name, status, message, text, flagged, onWritten }) {
  const [open, setOpen] = useState(false);
  const { partition, offset, timestamp, key, error, deleted, record_count: count, committed } = message;
  return html`<tr>
    <td class="numeric">${partition}</td><th scope="row" class="numeric">${String(offset)}</th>
    <td>${isUnknown(timestamp) ? "none" : html`<time datetime=${timestamp} title=${timestamp}>${dateTime(timestamp)}</time>`}</td>
    <td>${key === null ? html`<span class="unknown">none</span>` : html`<${Text} value=${shortText(visible(key.data))} />`}</td>
    <td class="value">${error !== null && html`<${State} kind="error" word="Cannot be decoded" /> `}${deleted && html`<span class="hint">Deletes its key</span> `}${count > 1 && html`<span class="hint">${whole(count)} records </span>`}<bdi class="text code">${shortText(text)}</bdi></td>
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
