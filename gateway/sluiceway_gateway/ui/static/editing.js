// Channels that are created, edited and deleted on the page, as documents of JSON.

import { channelPath, send } from "./api.js";
import { ask } from "./dialog.js";
import { Text } from "./format.js";
import { jsonText, parseExact } from "./json.js";
import { href, route } from "./router.js";
import { html } from "./view.js";

export { Dialog } from "./dialog.js";

const SCHEMA = {
  type: "record",
  name: "Record",
  fields: [{ name: "id", type: "long" }],
};

export function askToCreate() {
  ask({
    title: "Create a channel?",
    text: "The gateway creates its topic in Kafka. Delivery and format are fixed from then on.",
    confirm: "Create the channel",
    fields: [
      { id: "name", label: "Name", required: true },
      { id: "format", label: "Format of messages", options: { avro: "avro", arrow: "arrow", json: "json", protobuf: "protobuf", bytes: "bytes" } },
      { id: "delivery", label: "Delivery", options: { at_least_once: "at least once", exactly_once: "exactly once" } },
      { id: "partitions", label: "Partitions", type: "number", required: true, min: 1, value: "1" },
      { id: "labels", label: "Labels (optional), such as team=ops, stage=test" },
      { id: "schema", label: "Avro schema", type: "textarea", required: true, value: jsonText(SCHEMA, 2), shown: ({ format }) => format !== "bytes" },
    ],
    run: async ({ name, format, delivery, partitions, labels, schema }) => {
      const spec = { format, delivery, partitions: Number(partitions), ...(format !== "bytes" && { schema: parsed(schema, "The schema is") }) };
      await send(channelPath(name), {
        method: "PUT",
        headers: { "If-None-Match": "*" },
        body: jsonText({ metadata: { labels: labelsOf(labels) }, spec }),
      });
      location.hash = href(["channels", name], { tab: "configuration" });
    },
  });
}

// The dialog for the channel's document as it is now; the change applies to that only.
export async function askToEdit(name) {
  const view = route.value;
  const response = await send(channelPath(name)).catch((error) => error);
  // Meanwhile the page may have gone to another view.
  if (route.value !== view) return;
  if (response instanceof Error) {
    ask({ title: "The channel cannot be read", text: response.message, confirm: "Close", run: async () => {} });
    return;
  }
  const etag = response.headers.get("ETag");
  const { metadata, spec } = parseExact(await response.text());
  const before = { labels: metadata.labels, spec };
  ask({
    title: "Edit the channel?",
    text: html`The fields of <${Text} value=${name} /> that differ are changed. The topic follows; partitions can only grow, and a new schema becomes the newest version.`,
    confirm: "Save the changes",
    fields: [{ id: "document", label: "Labels and spec as JSON", type: "textarea", required: true, value: jsonText(before, 2) }],
    preview: ({ document }) => html`<${Changed} before=${before} text=${document} />`,
    run: async ({ document }) => {
      const changes = changesOf(before, parsed(document, "The document is"));
      if (!changes.length) throw new Error("Nothing is changed.");
      const after = Object.fromEntries(changes.filter(({ field }) => field !== "labels").map(({ field, now }) => [field, now]));
      const labels = changes.find(({ field }) => field === "labels");
      await send(channelPath(name), {
        method: "PUT",
        headers: { "If-Match": etag },
        body: jsonText({ metadata: { uid: metadata.uid, ...(labels && { labels: labels.now }) }, spec: after }),
      }).catch((error) => {
        throw error.code === "precondition_failed" ? new Error("Somebody else has changed the channel meanwhile: cancel, and edit it again.") : error;
      });
    },
  });
}

export function deleting(name, { uid }) {
  return {
    title: "Delete the channel?",
    text: html`<${Text} value=${name} /> is deleted with its topic and all of its records, for good. An adopted topic stays.`,
    confirm: "Delete the channel",
    fields: [
      { id: "name", label: "Type the channel's name", required: true },
      { id: "keep", type: "checkbox", label: "Keep the topic and its records in Kafka" },
      { id: "force", type: "checkbox", label: "Even if it is in use, or has unread records" },
    ],
    run: async ({ name: typed, keep, force }) => {
      if (typed !== name) throw new Error(`Type ${name} to delete it.`);
      const query = new URLSearchParams({ uid, ...(keep && { topic: "keep" }), ...(force && { force: "true" }) });
      await send(`${channelPath(name)}?${query}`, { method: "DELETE" });
    },
  };
}

function parsed(text, what) {
  try {
    return parseExact(text);
  } catch (error) {
    throw new Error(`${what} not JSON: ${error.message}.`);
  }
}

function labelsOf(text) {
  const pairs = text.split(",").map((pair) => pair.trim()).filter(Boolean).map((pair) => pair.split("=", 2));
  return Object.fromEntries(pairs.map(([key, value = ""]) => [key.trim(), value.trim()]));
}

// The labels and the fields of the spec that differ. A field that was removed keeps its value, so it is no change.
function changesOf(before, after) {
  if (!after?.labels || !after.spec) throw new Error("The document needs labels and spec.");
  const pairs = [["labels", before.labels, after.labels], ...Object.entries(after.spec).map(([field, now]) => [field, before.spec[field], now])];
  return pairs.filter(([, old, now]) => old === undefined || jsonText(old) !== jsonText(now)).map(([field, old, now]) => ({ field, old, now }));
}

function Changed({ before, text }) {
  let changes;
  try {
    changes = changesOf(before, parsed(text, "The document is"));
  } catch (error) {
    return html`<p class="preview" role="status">${error.message}</p>`;
  }
  if (!changes.length) return html`<p class="preview" role="status">Nothing is changed.</p>`;
  return html`<div class="preview" role="status"><ul class="fields">${changes.map(({ field, old, now }) => html`<li key=${field}><${Text} value=${field} />: ${field === "schema" ? "a new version" : html`<${Text} value=${jsonText(old ?? null)} /> → <${Text} value=${jsonText(now)} />`}</li>`)}</ul></div>`;
}
