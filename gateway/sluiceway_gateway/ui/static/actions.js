// Changes an operator may make, each behind a dialog that says what will happen.

import { may } from "./account.js";
import { channelPath, getJson, send } from "./api.js";
import { ask } from "./dialog.js";
import { askToEdit, deleting } from "./editing.js";
import { instant, isUnknown, Text, whole } from "./format.js";
import { exampleRecord, jsonText } from "./json.js";
import { Loaded, useResource } from "./resource.js";
import { route } from "./router.js";
import { html } from "./view.js";

export function channelActions(name, { channel }) {
  if (!may("manage", name)) return [];
  const open = !["closed", "deleting"].includes(channel.phase);
  const exists = channel.phase !== "deleting";
  return [
    { title: "Edit…", disabled: !exists, onClick: () => askToEdit(name) },
    { title: "Close…", disabled: !open, onClick: () => ask(closing(name, channel)) },
    { title: "Delete…", disabled: !exists, onClick: () => ask(deleting(name, channel)) },
  ];
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
  if (!may("manage", name)) return [];
  const { mode, index, size, dynamic } = group;
  return [
    ...(mode === "broadcast" && isUnknown(index) ? [] : [{ title: "Reset offsets…", onClick: () => ask(resetting(name, status, group)) }]),
    ...(dynamic || isUnknown(size) || index > 0 ? [] : [{ title: "Resize…", onClick: () => ask(resizing(name, status, group)) }]),
  ];
}

function resizing(name, { channel }, { group, size, generation }) {
  return {
    title: "Resize the group?",
    text: html`The members of <${Text} value=${group} /> stop, because they are fenced, and its positions stay. Start them again with the new size.`,
    confirm: "Resize the group",
    fields: [{ id: "size", label: "Number of members", type: "number", required: true, min: 1, value: String(size) }],
    run: ({ size: wanted }) =>
      send(channelPath(name, "groups", group, "resize"), {
        method: "POST",
        body: { uid: channel.uid, size: Number(wanted), generation },
      }),
  };
}

const TARGETS = { earliest: "the first message", latest: "the end", time: "a time", offset: "an offset of a partition" };
const END_OF = { earliest: "start", latest: "end" };

const offsetsPath = (name, time) => `${channelPath(name, "messages", "offsets")}?since=${encodeURIComponent(instant(time))}`;

// Where each partition goes, and how many messages are read again (negative: skipped). Those at a time are `found`.
function resetPlan({ partitions }, group, { target, partition: chosen, offset }, found) {
  const targets =
    target === "time"
      ? (found?.partitions ?? []).map((each) => ({ partition: each.partition, to: each.offset }))
      : target === "offset"
        ? [{ partition: Number(chosen), to: offset === "" || chosen === "" ? null : Number(offset) }]
        : partitions.map((each) => ({
            partition: each.partition,
            to: target === "latest" && !isUnknown(each.stable) ? each.stable : each[END_OF[target]],
          }));
  return targets
    .filter(({ to }) => !isUnknown(to))
    .map(({ partition, to }) => {
      const from = group.partitions.find((each) => each.partition === partition)?.committed ?? null;
      return { partition, from, to, again: isUnknown(from) ? null : from - to };
    });
}

function resetting(name, status, group) {
  const last = status.partitions.length - 1;
  return {
    title: "Reset the group's offsets?",
    text: html`Group <${Text} value=${group.group} /> continues from other positions, in a new generation.`,
    confirm: "Reset the offsets",
    fields: [
      { id: "target", label: "To", options: TARGETS },
      { id: "time", label: "Time, in the time zone of this browser", type: "datetime-local", required: true, shown: ({ target }) => target === "time" },
      { id: "partition", label: "Partition", type: "number", required: true, max: last < 0 ? undefined : last, shown: ({ target }) => target === "offset" },
      { id: "offset", label: "Next offset to read; other partitions stay", type: "number", required: true, shown: ({ target }) => target === "offset" },
      { id: "reason", label: "Reason", required: true },
      { id: "force", type: "checkbox", label: "Even while members are alive: they are fenced" },
    ],
    preview: (values) =>
      values.target === "time"
        ? values.time && html`<${TimePreview} path=${offsetsPath(name, values.time)} plan=${(found) => resetPlan(status, group, values, found)} />`
        : html`<${ResetPreview} plan=${resetPlan(status, group, values)} hint=${values.target === "offset" ? "Give a partition and an offset." : NOT_SAMPLED} />`,
    run: async (values) => {
      const found = values.target === "time" ? await getJson(offsetsPath(name, values.time)) : null;
      if (found?.partitions_unavailable.length) throw new Error(UNAVAILABLE);
      const plan = resetPlan(status, group, values, found);
      if (!plan.length) throw new Error(NOT_SAMPLED);
      const channel = await getJson(channelPath(name));
      await send(channelPath(name, "groups", group.group, "offsets", "reset"), {
        method: "POST",
        body: {
          uid: status.channel.uid,
          topic_id: channel.status.topic.id,
          positions: plan.map(({ partition, to }) => ({ partition, offset: to, record: 0 })),
          ...(!isUnknown(group.index) && { index: group.index }),
          reason: values.reason,
          force: Boolean(values.force),
        },
      });
    },
  };
}

const UNAVAILABLE = "Kafka did not return the offsets of all partitions: try again when their leaders are back.";

function TimePreview({ path, plan }) {
  const resource = useResource(path);
  return html`<${Loaded} resource=${resource}>${(found) => html`<${ResetPreview} plan=${plan(found)} hint=${UNAVAILABLE} />`}</>`;
}

const NOT_SAMPLED = "The ends of the partitions are not known yet: try again after the next sample of Kafka.";
const MAX_PREVIEW = 100;

function ResetPreview({ plan, hint }) {
  if (!plan.length) return html`<p class="preview" role="status">${hint}</p>`;
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
