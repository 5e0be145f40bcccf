// Writers and readers, with their history.

import { dismissAction } from "./actions.js";
import { channelPath, getJson } from "./api.js";
import { ageOf, ago, count, durationText, isUnknown, Moment, Text, whole } from "./format.js";
import { safeAddress } from "./graph.js";
import { Loaded, useResource, useVersion } from "./resource.js";
import { EndpointState, ProgressState } from "./states.js";
import { html, useState } from "./view.js";

const HEARTBEATS_MS = 5_000;

export function Endpoints({ name, status }) {
  const ages = useHeartbeats(name);
  return html`<h2>Writers</h2>
    <${List} name=${name} status=${status} endpoints=${status.writers} role="writer" ages=${ages} />
    <h2>Readers</h2>
    <${List} name=${name} status=${status} endpoints=${status.readers} role="reader" ages=${ages} />`;
}

// The ages of the last heartbeats in seconds, when they were last read. Heartbeats in time make no new status.
function useHeartbeats(name) {
  const version = useVersion(HEARTBEATS_MS);
  const read = async (path, options) => {
    const { heartbeats } = await getJson(path, options);
    return new Map(Object.entries(heartbeats).map(([id, at]) => [id, ageOf(at)]));
  };
  const { data } = useResource(channelPath(name, "heartbeats"), version, read);
  return data ?? new Map();
}

const SHOWN = 100;
const ORDER = { lost: 0, suspect: 1, healthy: 2 };
// Those that have ended come after the others.
const urgency = ({ state, health }) => (state === "closed" ? 4 : state === "error" ? 3 : (ORDER[health] ?? 2));
const isLive = ({ state, health }) => health !== "lost" && !["closed", "error"].includes(state);

const HEARTBEAT_HINT = "Of those in time: when the page last looked, every 5 s";

function List({ name, status, endpoints, role, ages }) {
  const [all, setAll] = useState(false);
  if (!endpoints.length) return html`<p class="empty">No ${role} has attached.</p>`;
  const sorted = endpoints.toSorted((one, other) => urgency(one) - urgency(other));
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${`${role}s`}><table>
    <thead><tr><th scope="col">Group</th><th scope="col" class="numeric">Index</th><th scope="col">State</th><th scope="col">Title</th>
      ${role === "reader" && html`<th scope="col">Progress</th><th scope="col" class="numeric">Lag</th>`}
      <th scope="col" class="numeric">Records</th><th scope="col" title=${HEARTBEAT_HINT}>Heartbeat</th><th scope="col">Attached</th><th scope="col"><span class="sr">Actions</span></th></tr></thead>
    <tbody>${(all ? sorted : sorted.slice(0, SHOWN)).map((each) => html`<${Endpoint} key=${each.id} name=${name} status=${status} endpoint=${each} age=${ages.get(each.id)} />`)}</tbody>
  </table></div>
  ${sorted.length > SHOWN && !all && html`<button onClick=${() => setAll(true)}>Show all ${whole(sorted.length)}</button>`}`;
}

function Endpoint({ name, status, endpoint, age }) {
  const [open, setOpen] = useState(false);
  const reads = endpoint.role === "reader";
  const dismiss = dismissAction(name, status, endpoint);
  return html`<tr>
    <th scope="row">${isUnknown(endpoint.group) ? "without a group" : html`<${Text} value=${endpoint.group} />`}</th>
    <td class="numeric">${endpoint.index}${isUnknown(endpoint.size) ? "" : ` of ${endpoint.size}`}</td>
    <td><${EndpointState} endpoint=${endpoint} />${endpoint.cause && html` <${Text} class="reason" value=${endpoint.cause} />`}</td>
    <td>${endpoint.title ? html`<${Text} value=${endpoint.title} />` : ""}<${Spark} endpoint=${endpoint} /></td>
    ${reads && html`<td>${(isLive(endpoint) || !isUnknown(endpoint.progress)) && html`<${ProgressState} progress=${endpoint.progress} />`}</td><td class="numeric">${count(endpoint.lag_messages)}</td>`}
    <td class="numeric">${count(endpoint.counters.records, "Unknown: not reported")}</td>
    <td>${heartbeat(endpoint, age)}</td>
    <td>${ago(endpoint.attached_at)}</td>
    <td class="actions"><button class="disclosure" aria-expanded=${open} onClick=${() => setOpen(!open)}>History</button>
      ${dismiss && html`<button onClick=${dismiss.onClick}>${dismiss.title}</button>`}</td>
  </tr>
  ${open && html`<tr class="details"><td colspan=${reads ? 10 : 8}><${History} name=${name} endpoint=${endpoint} /></td></tr>`}`;
}

// The age in the status of one in time would be too high, and one that grows between two looks too.
function heartbeat({ state, health, heartbeat: { interval_ms, timeout_ms }, last_heartbeat_at: at }, age) {
  const inTime = health === "healthy" && !["closed", "error"].includes(state);
  if (!inTime || (isUnknown(at) && isUnknown(age))) return ago(at, "None yet");
  const every = interval_ms < 1000 ? `${whole(interval_ms)} ms` : durationText(interval_ms / 1000);
  const rule = `In time: every ${every}, lost after ${durationText(timeout_ms / 1000)} without one`;
  return html`<span title=${rule}>${isUnknown(age) ? "in time" : `${durationText(age)} ago`}</span>`;
}

// Application and query of a Spark job, linked to its UI where that is known.
function Spark({ endpoint: { spark } }) {
  if (!spark) return "";
  const names = [spark.application, spark.query].filter(Boolean).join(" / ");
  return html` <span class="spark">${safeAddress(spark.ui) ? html`<a href=${spark.ui} rel="noreferrer noopener" target="_blank"><${Text} value=${names || "Spark UI"} /></a>` : html`<${Text} value=${names} />`}</span>`;
}

function History({ name, endpoint }) {
  const resource = useResource(channelPath(name, "endpoints", endpoint.id), endpoint.changed_at);
  return html`<${Loaded} resource=${resource}>${({ events, partitions, id, epoch }) => html`
    <p class="hint">Instance <code>${id}</code>, epoch ${epoch}${partitions.length > 0 && `, partitions ${ranges(partitions)}`}</p>
    <ol class="events">${events.toReversed().map((each) => html`<li><${Moment} time=${each.at} />
      <${EndpointState} endpoint=${{ state: each.state, health: each.health }} />
      ${each.cause && html`<${Text} class="reason" value=${each.cause} />`} <span class="hint">by <${Text} value=${each.by} /></span></li>`)}</ol>`}</>`;
}

// "0–3, 7": the partitions as ranges.
function ranges(numbers) {
  const parts = [];
  for (const each of numbers) {
    const open = parts.at(-1);
    if (open && each === open[1] + 1) open[1] = each;
    else parts.push([each, each]);
  }
  return parts.map(([first, final]) => (first === final ? first : `${first}–${final}`)).join(", ");
}
