// Batches of an exactly-once channel: open ones, which hold readers back, and the ends of others.

import { abortAction } from "./actions.js";
import { channelPath } from "./api.js";
import { ago, count, durationText, isUnknown, Moment, Text, whole } from "./format.js";
import { Loaded, useNewest, useResource } from "./resource.js";
import { State } from "./states.js";
import { html } from "./view.js";

const KINDS = { commit: ["good", "Committed"], abort: ["warning", "Aborted"], reap: ["error", "Lease ended"] };

export function Commits({ name, status }) {
  // Null until the first sample.
  const { ledger } = status;
  const { limit, hint } = useNewest(100);
  // The number grows with each end of a batch; open batches come and go with the status.
  const resource = useResource(`${channelPath(name, "commits")}?limit=${limit}`, `${ledger?.number}/${ledger?.open_batches}`);
  return html`
    ${ledger?.halted && html`<p class="notice" role="alert"><b>Halted.</b> <${Text} value=${ledger.halted} /> <code>sluiceway channels repair ${name}</code> shows what is lost, and asks before it gives that up.</p>`}
    <${Loaded} resource=${resource}>${({ commits, repairs, open }) => html`
      <h2>Open batches</h2>
      ${open.length === 0 ? html`<p class="empty">None is open.</p>` : html`<div class="scroll" tabindex="0" role="region" aria-label="Open batches"><table>
        <thead><tr><th scope="col">Key</th><th scope="col">Owner</th><th scope="col">Open since</th><th scope="col" class="numeric">Holds back</th><th scope="col"><span class="sr">Actions</span></th></tr></thead>
        <tbody>${open.map((each) => html`<tr key=${each.id}>
          <th scope="row"><${Text} value=${each.key} /></th><td><${Text} value=${each.owner} /></td><td>${ago(each.since)}</td>
          <td class="numeric">${count(heldBy(ledger, each))}</td><td class="actions"><${Action} action=${abortAction(name, status, each)} /></td></tr>`)}</tbody>
      </table></div>`}
      <h2>Ended batches</h2>
      ${commits.length + repairs.length === 0 ? html`<p class="empty">No batch has ended yet.</p>` : html`<div class="scroll" tabindex="0" role="region" aria-label="Ended batches"><table>
        <thead><tr><th scope="col" class="numeric">Number</th><th scope="col">End</th><th scope="col">Key</th><th scope="col">Owner</th><th scope="col" class="numeric">Records</th><th scope="col">At</th><th scope="col">Open for</th></tr></thead>
        <tbody>${[...commits, ...repairs].sort((one, other) => other.number - one.number).map((each) => (each.lost ? html`<${Repair} key=${each.number} repair=${each} />` : html`<${Ended} key=${each.number} batch=${each} />`))}</tbody>
      </table></div>${hint(commits.length)}`}`}</>`;
}

function Ended({ batch: { number, kind, cause, key, owner, records, at, opened_at: opened } }) {
  const [shape, word] = KINDS[kind] ?? ["idle", kind];
  return html`<tr>
    <th scope="row" class="numeric">${whole(number)}</th><td><${State} kind=${shape} word=${word} />${cause && html` <${Text} class="reason" value=${cause} />`}</td>
    <td><${Text} value=${key} /></td><td><${Text} value=${owner} /></td><td class="numeric">${count(records, "None were committed")}</td>
    <td><${Moment} time=${at} /></td><td>${durationText((Date.parse(at) - Date.parse(opened)) / 1000)}</td></tr>`;
}

// A repair of a halted channel: records that Kafka had lost are not committed any more.
function Repair({ repair: { number, reason, by, lost, at } }) {
  return html`<tr>
    <th scope="row" class="numeric">${whole(number)}</th><td><${State} kind="error" word="Repaired" /> <${Text} class="reason" value=${reason} /></td>
    <td></td><td><${Text} value=${by} /></td><td class="numeric">${whole(-lost.reduce((sum, { messages }) => sum + messages, 0))}</td>
    <td><${Moment} time=${at} /></td><td></td></tr>`;
}

// The status has the batches for which the most messages wait.
const heldBy = (ledger, { key, owner }) => ledger?.batches.find((each) => each.key === key && each.owner === owner)?.held_messages;

function Action({ action }) {
  return isUnknown(action) ? "" : html`<button onClick=${action.onClick}>${action.title}</button>`;
}
