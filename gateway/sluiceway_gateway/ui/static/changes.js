// Audit trail of a channel, which may be deleted: token, time, and old and new values.

import { channelPath } from "./api.js";
import { acted } from "./dialog.js";
import { ago, isUnknown, Text, whole } from "./format.js";
import { Loaded, useNewest, useResource } from "./resource.js";
import { html } from "./view.js";

const ACTIONS = {
  create: "Created",
  update: "Updated",
  close: "Closed",
  delete: "Deleted",
  reset_offsets: "Offsets reset",
  resize_group: "Group resized",
  dismiss_endpoint: "Endpoint dismissed",
  abort_batch: "Batch aborted",
  repair_ledger: "Commits repaired",
  refuse_commit: "Commit refused",
  write_messages: "Messages written",
  claim_owner: "Owner recorded",
  transfer_owner: "Owner changed",
  foreign_use: "Used by another label",
};

// `status` is null for a channel that does not exist any more.
export function Changes({ name, status }) {
  const { limit, hint } = useNewest(100);
  const resource = useResource(`${channelPath(name, "changes")}?limit=${limit}`, versionOf(status));
  if (!status && !resource.data?.items.length) return null;
  return html`<h2>Changes</h2>
    <${Loaded} resource=${resource}>${({ items }) =>
      items.length === 0
        ? html`<p class="empty">No change is kept.</p>`
        : html`<div class="scroll" tabindex="0" role="region" aria-label="List of changes"><table class="changes">
            <thead><tr><th scope="col">When</th><th scope="col">By</th><th scope="col">Change</th><th scope="col">From → to</th></tr></thead>
            <tbody>${items.map((each) => html`<${Entry} key=${each.number} entry=${each} uid=${status?.channel.uid} />`)}</tbody>
          </table></div>${hint(items.length)}`}</>`;
}

// Differs after each change of the audit trail, and not after samples of lag.
function versionOf(status) {
  if (!status) return `gone/${acted.value}`;
  const { channel, groups, writers, readers, ledger } = status;
  const generations = groups.reduce((sum, { generation }) => sum + generation, 0);
  return [channel.generation, channel.phase, generations, writers.length, readers.length, ledger?.open_batches, acted.value].join("/");
}

function Entry({ entry, uid }) {
  const { action, by, token_id: token, target, reason, fields, omitted } = entry;
  return html`<tr>
    <td>${ago(entry.at)}</td>
    <td title=${isUnknown(token) ? undefined : `Token ${token}`}><${Text} value=${by} /></td>
    <th scope="row">${ACTIONS[action] ?? action}${!isUnknown(target) && html` <${Text} value=${target} />`}${!isUnknown(reason) && html` <${Text} class="reason" value=${reason} />`}
      ${uid && entry.uid !== uid && html` <span class="label">an earlier channel of this name</span>`}</th>
    <td>${fields.length > 0 && html`<ul class="fields">${fields.map(({ field, old, new: now }) => html`<li key=${field}><${Text} value=${field} />: <${Value} value=${old} /> → <${Value} value=${now} /></li>`)}${omitted > 0 && html`<li>${whole(omitted)} more</li>`}</ul>`}</td>
  </tr>`;
}

function Value({ value }) {
  if (isUnknown(value)) return html`<span class="unknown">none</span>`;
  return html`<${Text} value=${String(value)} />`;
}
