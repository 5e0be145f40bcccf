// Batches of an exactly-once channel: open ones, which hold readers back, and the ends of others.

import { abortAction } from "./actions.js";
import { channelPath } from "./api.js";
import { ago, count, dateTime, durationText, isUnknown, Text, whole } from "./format.js";
import { tick } from "./live.js";
import { Loaded, useResource } from "./resource.js";
import { State } from "./states.js";
import { html } from "./view.js";

const KINDS = { commit: ["good", "Committed"], abort: ["warning", "Aborted"], reap: ["error", "Lease ended"] };

export function Commits({ name, status }) {
  const { ledger } = status;
  // The number grows with each end of a batch; open batches come and go with the status.
  const resource = useResource(`${channelPath(name, "commits")}?limit=100`, `${ledger.number}/${ledger.open_batches}`);
  tick.value;
  return html`
    ${ledger.halted && html`<p class="notice" role="alert"><b>Halted.</b> <${Text} value=${ledger.halted} /> <code>sluiceway repair</code> shows what is lost.</p>`}
    <${Loaded} resource=${resource}>${({ commits: items, open }) => html`
      <h2>Open batches</h2>
      ${open.length === 0 ? html`<p class="empty">None is open.</p>` : html`<div class="scroll" tabindex="0" role="region" aria-label="Open batches"><table>
        <thead><tr><th scope="col">Key</th><th scope="col">Owner</th><th scope="col">Open since</th><th scope="col" class="numeric">Holds back</th><th scope="col"><span class="sr">Actions</span></th></tr></thead>
        <tbody>${open.map((each) => html`<tr key=${each.id}>
          <th scope="row"><${Text} value=${each.key} /></th><td><${Text} value=${each.owner} /></td><td>${ago(each.since)}</td>
          <td class="numeric">${count(heldBy(ledger, each))}</td><td class="actions"><${Action} action=${abortAction(name, status, each)} /></td></tr>`)}</tbody>
      </table></div>`}
      <h2>Ended batches</h2>
      ${items.length === 0 ? html`<p class="empty">No batch has ended yet.</p>` : html`<div class="scroll" tabindex="0" role="region" aria-label="Ended batches"><table>
        <thead><tr><th scope="col" class="numeric">Number</th><th scope="col">End</th><th scope="col">Key</th><th scope="col">Owner</th><th scope="col" class="numeric">Records</th><th scope="col">At</th><th scope="col">Open for</th></tr></thead>
        <tbody>${items.map((each) => html`<tr key=${each.number}>
          <th scope="row" class="numeric">${whole(each.number)}</th><td><${State} kind=${KINDS[each.kind][0]} word=${KINDS[each.kind][1]} />${each.cause && html` <${Text} class="reason" value=${each.cause} />`}</td>
          <td><${Text} value=${each.key} /></td><td><${Text} value=${each.owner} /></td><td class="numeric">${count(each.records, "None were committed")}</td>
          <td><time datetime=${each.at}>${dateTime(each.at)}</time></td><td>${durationText((Date.parse(each.at) - Date.parse(each.opened_at)) / 1000)}</td></tr>`)}</tbody>
      </table></div>`}`}</>`;
}

// The status has the batches for which the most messages wait.
const heldBy = (ledger, { key, owner }) => ledger.batches.find((each) => each.key === key && each.owner === owner)?.held_messages;

function Action({ action }) {
  return isUnknown(action) ? "" : html`<button onClick=${action.onClick}>${action.title}</button>`;
}
