// Changes an operator may make, each behind a dialog that says what will happen.

import { may } from "./account.js";
import { channelPath, getJson, send } from "./api.js";
import { isUnknown, Text, whole } from "./format.js";
import { exampleRecord, jsonText } from "./json.js";
import { route } from "./router.js";
import { signInReason } from "./token.js";
import { effect, html, signal, useEffect, useRef, useState } from "./view.js";

// How many actions of this page have succeeded.
export const acted = signal(0);

// The open dialog: { title, text, confirm, fields, run }; null while there is none.
const dialog = signal(null);

// A dialog ends with its token, and with its view: over another channel it would be taken for one of that.
effect(() => {
  if (signInReason.value !== null) dialog.value = null;
});
effect(() => {
  route.value;
  dialog.value = null;
});

export function channelActions(name, { channel }) {
  if (!may("manage", name)) return [];
  const open = !["closed", "deleting"].includes(channel.phase);
  return [{ title: "Close…", disabled: !open, onClick: () => ask(closing(name, channel)) }];
}

function closing(name, { uid, phase }) {
  const close = (force) => send(channelPath(name, "close"), { method: "POST", body: { uid, force } });
  if (phase === "closing") {
    return {
      title: "Close the channel at once?",
      text: html`<${Text} value=${name} /> waits for its writers and readers. Closed at once, it refuses writers that are still open; its records stay readable.`,
      confirm: "Close it at once",
      run: () => close(true),
    };
  }
  return {
    title: "Close the channel?",
    text: html`New writers of <${Text} value=${name} /> will be refused. Present writers finish, and readers read the rest. A closed channel cannot be opened again.`,
    confirm: "Close the channel",
    fields: [{ id: "force", type: "checkbox", label: "Close at once, even while writers are attached" }],
    run: ({ force }) => close(Boolean(force)),
  };
}

export function dismissAction(name, { channel }, endpoint) {
  const gone = endpoint.state === "error" || (endpoint.health === "lost" && endpoint.state !== "closed");
  if (!gone || !may("manage", name)) return null;
  return {
    title: "Dismiss…",
    onClick: () =>
      ask({
        title: `Dismiss the ${endpoint.role}?`,
        text:
          endpoint.role === "writer"
            ? "Its later requests are refused. Its records stay readable: for readers, it finished with all that is in the channel now."
            : "Its later requests are refused, and its place is free for another reader.",
        confirm: "Dismiss it",
        run: () => send(`${channelPath(name, "endpoints", endpoint.id)}?uid=${channel.uid}`, { method: "DELETE" }),
      }),
  };
}

export function abortAction(name, { channel }, batch) {
  if (!may("manage", name)) return null;
  return {
    title: "Abort…",
    onClick: () =>
      ask({
        title: "Abort the open batch?",
        text: html`Nothing of <${Text} value=${batch.key} /> becomes visible, and its writer is refused. Readers go on with the batches after it.`,
        confirm: "Abort the batch",
        fields: [{ id: "cause", label: "Reason", required: true }],
        run: ({ cause }) =>
          send(channelPath(name, "batches", batch.id, "abort"), {
            method: "POST",
            body: { uid: channel.uid, instance: null, cause },
          }),
      }),
  };
}

export function offsetActions(name, status, group) {
  if ((group.mode === "broadcast" && isUnknown(group.index)) || !may("manage", name)) return [];
  return [{ title: "Reset offsets…", onClick: () => ask(resetting(name, status, group)) }];
}

const END_OF = { earliest: "start", latest: "end" };

// Where each partition goes, and how many messages are read again (negative: skipped).
function resetPlan({ partitions }, group, target) {
  return partitions.map((each) => {
    const from = group.partitions.find(({ partition }) => partition === each.partition)?.committed ?? null;
    const to = target === "latest" && !isUnknown(each.stable) ? each.stable : each[END_OF[target]];
    return { partition: each.partition, from, to, again: isUnknown(from) || isUnknown(to) ? null : from - to };
  });
}

function resetting(name, status, group) {
  const planned = (target) => resetPlan(status, group, target).filter(({ to }) => !isUnknown(to));
  return {
    title: "Reset the group's offsets?",
    text: html`Group <${Text} value=${group.group} /> continues from other positions, in a new generation.`,
    confirm: "Reset the offsets",
    fields: [
      { id: "target", label: "To", options: { earliest: "the first message", latest: "the end" } },
      { id: "reason", label: "Reason", required: true },
      { id: "force", type: "checkbox", label: "Even while members are alive: they are fenced" },
    ],
    preview: ({ target }) => html`<${ResetPreview} plan=${planned(target)} />`,
    run: async ({ target, reason, force }) => {
      if (!planned(target).length) throw new Error(NOT_SAMPLED);
      const channel = await getJson(channelPath(name));
      await send(channelPath(name, "groups", group.group, "offsets", "reset"), {
        method: "POST",
        body: {
          uid: status.channel.uid,
          topic_id: channel.status.topic.id,
          positions: planned(target).map(({ partition, to }) => ({ partition, offset: to, record: 0 })),
          ...(!isUnknown(group.index) && { index: group.index }),
          reason,
          force: Boolean(force),
        },
      });
    },
  };
}

const NOT_SAMPLED = "The ends of the partitions are not known yet: try again after the next sample of Kafka.";
const MAX_PREVIEW = 100;

function ResetPreview({ plan }) {
  if (!plan.length) return html`<p class="preview" role="status">${NOT_SAMPLED}</p>`;
  const sum = (pick) => plan.reduce((total, { again }) => total + Math.max(0, pick(again ?? 0)), 0);
  const unknown = plan.filter(({ again }) => again === null).length;
  return html`<p class="preview" role="status">
    ${whole(sum((each) => each))} messages will be read again, ${whole(sum((each) => -each))} skipped, in ${whole(plan.length)} ${plan.length === 1 ? "partition" : "partitions"}.
    ${unknown > 0 && ` In ${whole(unknown)} of them the group has no position yet.`}
  </p>
  <div class="scroll" tabindex="0" role="region" aria-label="Preview by partition"><table>
    <thead><tr><th scope="col">Partition</th><th scope="col" class="numeric">From</th><th scope="col" class="numeric">To</th><th scope="col">Effect</th></tr></thead>
    <tbody>${plan.slice(0, MAX_PREVIEW).map(({ partition, from, to, again }) => html`<tr key=${partition}><th scope="row">${partition}</th>
      <td class="numeric">${isUnknown(from) ? "–" : whole(from)}</td><td class="numeric">${whole(to)}</td>
      <td>${again === null ? "unknown" : again > 0 ? `${whole(again)} read again` : again < 0 ? `${whole(-again)} skipped` : "unchanged"}</td></tr>`)}</tbody>
  </table></div>${plan.length > MAX_PREVIEW && html`<p class="hint">The first ${whole(MAX_PREVIEW)} of ${whole(plan.length)} partitions are listed; the sums are of all.</p>`}`;
}

// Write records by hand; `record` and `key` are those of a message that is written again.
export function writeAction(name, { channel, partitions }, { onWritten, record, key }) {
  if (!may("write", name)) return null;
  const open = !["closing", "closed", "deleting", "provisioning"].includes(channel.phase);
  const exact = channel.delivery === "exactly_once";
  return {
    title: "Write messages…",
    disabled: !open,
    onClick: async () => {
      const view = route.value;
      const text = record === undefined ? await exampleText(name).catch(() => "{}") : jsonText(record, 2);
      // Meanwhile the page may have gone to another view.
      if (route.value !== view) return;
      ask({
        title: "Write records by hand?",
        text: exact
          ? "They become one committed batch: readers see them once, and nobody can take them back."
          : "Readers see them as any others, and nobody can take them back.",
        confirm: "Write them",
        fields: [
          { id: "records", label: "A record as JSON, or a list of them", type: "textarea", required: true, value: text },
          { id: "key", label: "Key of the messages (optional)", value: key?.encoding === "utf-8" ? key.data : "" },
          { id: "partition", label: "Partition (optional)", type: "number", max: partitions.length ? partitions.length - 1 : undefined },
          ...(exact ? [{ id: "batch_key", label: "Key of the batch (optional): a repeat with it writes nothing" }] : []),
        ],
        run: async (values) => onWritten(await (await send(channelPath(name, "messages"), { method: "POST", body: writeBody(channel, values) })).json()),
      });
    },
  };
}

async function exampleText(name) {
  const { spec } = await getJson(channelPath(name));
  return jsonText(exampleRecord(spec.schema), 2);
}

// The records go as they were typed: JavaScript would round long numbers.
function writeBody({ uid }, { records, key, partition, batch_key }) {
  let parsed;
  try {
    parsed = JSON.parse(records);
  } catch (error) {
    throw new Error(`The records are not JSON: ${error.message}.`);
  }
  const rest = { uid, ...(key && { key }), ...(partition && { partition: Number(partition) }), ...(batch_key && { batch_key }) };
  return `${JSON.stringify(rest).slice(0, -1)},"records":${Array.isArray(parsed) ? records : `[${records}]`}}`;
}

function ask(spec) {
  dialog.value = spec;
}

export function Dialog() {
  return dialog.value && html`<${OpenDialog} spec=${dialog.value} />`;
}

function OpenDialog({ spec }) {
  const element = useRef(null);
  const [values, setValues] = useState(() =>
    Object.fromEntries((spec.fields ?? []).map(({ id, options, value }) => [id, value ?? (options ? Object.keys(options)[0] : "")])),
  );
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  useEffect(() => element.current.showModal(), []);

  async function confirm(event) {
    event.preventDefault();
    setBusy(true);
    try {
      await spec.run(values);
      acted.value += 1;
      // The view may have gone meanwhile, and the dialog with it.
      element.current?.close();
    } catch (failure) {
      setError(failure.message);
      setBusy(false);
    }
  }

  return html`<dialog ref=${element} aria-labelledby="dialog-title" onClose=${() => (dialog.value = null)}>
    <form onSubmit=${confirm}>
      <h2 id="dialog-title">${spec.title}</h2>
      <p>${spec.text}</p>
      ${(spec.fields ?? []).map((each) => html`<${Field} key=${each.id} field=${each} value=${values[each.id]} onChange=${(value) => setValues({ ...values, [each.id]: value })} />`)}
      ${spec.preview?.(values)}
      ${error && html`<p class="notice" role="alert">${error}</p>`}
      <div class="buttons">
        <button type="button" onClick=${() => element.current.close()}>Cancel</button>
        <button class="primary" disabled=${busy}>${spec.confirm}</button>
      </div>
    </form>
  </dialog>`;
}

function Field({ field: { id, label, type = "text", required, options, max }, value, onChange }) {
  if (type === "checkbox") {
    return html`<label class="check"><input type="checkbox" checked=${Boolean(value)} onChange=${(event) => onChange(event.target.checked)} /> ${label}</label>`;
  }
  const control = options
    ? html`<select id=${`field-${id}`} value=${value} onChange=${(event) => onChange(event.target.value)}>${Object.entries(options).map(([key, text]) => html`<option value=${key}>${text}</option>`)}</select>`
    : type === "textarea"
      ? html`<textarea id=${`field-${id}`} rows="12" spellcheck="false" required=${required} onInput=${(event) => onChange(event.target.value)} value=${value}></textarea>`
      : html`<input id=${`field-${id}`} type=${type} min="0" max=${max} value=${value} required=${required} maxlength="1000" autocomplete="off" onInput=${(event) => onChange(event.target.value)} />`;
  return html`<div class="field"><label for=${`field-${id}`}>${label}</label>${control}</div>`;
}
