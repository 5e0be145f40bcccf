// Groups of readers: lag and rates, now and over time, and the positions in each partition.

import { offsetActions } from "./actions.js";
import { count, drainTime, duration, exact, isUnknown, rate, Text, trend, whole } from "./format.js";
import { ProgressState } from "./states.js";
import { html, useState } from "./view.js";

const MAX_PARTITIONS = 200;

export function Readers({ name, status }) {
  return html`<h2>Groups</h2>
    ${status.groups.length === 0
      ? html`<p class="empty">No group reads this channel.</p>`
      : status.groups.map((group) => html`<${Group} key=${`${group.group}/${group.index}`} name=${name} status=${status} group=${group} />`)}
    <h2>Partitions</h2>
    <${Partitions} status=${status} />`;
}

function Group({ name, status, group }) {
  const [open, setOpen] = useState(false);
  return html`<article class="group">
    <h3><${Text} value=${group.group} />${!isUnknown(group.index) && html` <span>member ${group.index}</span>`}
      <${ProgressState} progress=${group.progress} />
      <span class="actions">${offsetActions(name, status, group).map(({ title, onClick }) => html`<button key=${title} onClick=${onClick}>${title}</button>`)}</span>
    </h3>
    <dl class="figures small">
      <div><dt>Lag</dt><dd>${count(group.lag_messages)}${!isUnknown(group.lag_records) && " records"}</dd></div>
      <div><dt>Behind</dt><dd>${duration(group.lag_seconds, { atLeast: group.lag_seconds_at_least })}</dd></div>
      <div><dt>Trend</dt><dd>${trend(group.trend)}</dd></div>
      <div><dt>Time to drain</dt><dd>${drainTime(group)}</dd></div>
      <div><dt>Read</dt><dd>${rate(group.read_rate)}</dd></div>
      <div><dt>Members</dt><dd>${whole(group.members)}${isUnknown(group.size) ? "" : ` of ${whole(group.size)}`}${group.dynamic ? ", dynamic" : ""}</dd></div>
    </dl>
    <button class="disclosure" aria-expanded=${open} onClick=${() => setOpen(!open)}>Positions by partition</button>
    ${open && html`<div class="scroll" tabindex="0" role="region" aria-label="Positions by partition"><table>
      <thead><tr><th scope="col">Partition</th><th scope="col" class="numeric">Committed</th><th scope="col" class="numeric">Position</th><th scope="col" class="numeric">End</th><th scope="col" class="numeric">Lag</th><th scope="col" class="numeric">Behind</th><th scope="col">Progress</th></tr></thead>
      <tbody>${furthestBehind(group.partitions).map((each) => html`<tr key=${each.partition}>
        <th scope="row">${each.partition}</th><td class="numeric">${exact(each.committed)}</td><td class="numeric">${exact(each.position)}</td><td class="numeric">${exact(each.end)}</td>
        <td class="numeric">${count(each.lag_messages)}</td><td class="numeric">${duration(each.lag_seconds, { atLeast: each.lag_seconds_at_least })}</td><td><${ProgressState} progress=${each.progress} /></td></tr>`)}</tbody>
    </table></div><${Cut} all=${group.partitions} which="with the largest lag" />`}
  </article>`;
}

// All partitions or, of too many, those with the largest lag, in their order.
function furthestBehind(partitions) {
  if (partitions.length <= MAX_PARTITIONS) return partitions;
  const behind = partitions.toSorted((one, other) => (other.lag_messages ?? -1) - (one.lag_messages ?? -1));
  return behind.slice(0, MAX_PARTITIONS).sort((one, other) => one.partition - other.partition);
}

function Cut({ all, which }) {
  return all.length > MAX_PARTITIONS && html`<p class="hint">${whole(MAX_PARTITIONS)} of ${whole(all.length)} partitions, those ${which}.</p>`;
}

function Partitions({ status }) {
  const delivered = status.ledger !== null;
  if (!status.partitions.length) return html`<p class="empty">Unknown: not sampled yet.</p>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Partitions"><table>
    <thead><tr><th scope="col">Partition</th><th scope="col" class="numeric">First offset</th>${delivered && html`<th scope="col" class="numeric">Readable up to</th>`}<th scope="col" class="numeric">End</th></tr></thead>
    <tbody>${status.partitions.slice(0, MAX_PARTITIONS).map((each) => html`<tr key=${each.partition}>
      <th scope="row">${each.partition}</th><td class="numeric">${exact(each.start)}</td>${delivered && html`<td class="numeric">${exact(each.stable)}</td>`}<td class="numeric">${exact(each.end)}</td></tr>`)}</tbody>
  </table></div><${Cut} all=${status.partitions} which="with the lowest numbers" />`;
}
