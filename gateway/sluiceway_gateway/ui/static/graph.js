// The jobs around a channel as a picture: writers, channels and readers, with links, and as text.

import { channelPath } from "./api.js";
import { count, isUnknown, Text, whole } from "./format.js";
import { lazy, Loaded, NotLoaded, useResource, useVersion } from "./resource.js";
import { href } from "./router.js";
import { lineState, State } from "./states.js";
import { html, useEffect, useMemo } from "./view.js";

const REFRESH_MS = 10_000;
const NODE = { width: 164, height: 58 };
const CHARACTER_PX = 6.2;
const MARGIN = 16;

const [library, load, failed] = lazy(async () => (await import("./vendor/dagre/dagre.esm.js")).default);

export function Graph({ name, status }) {
  const version = useVersion(REFRESH_MS);
  useEffect(load, []);
  const members = status.writers.length + status.readers.length;
  const resource = useResource(channelPath(name, "graph"), `${version}/${members}`);
  return html`<${Loaded} resource=${resource} keep>${(graph) => html`<${Jobs} graph=${graph} />`}</>`;
}

function Jobs({ graph }) {
  if (!graph.jobs.length) return html`<p class="empty">No job writes or reads this channel.</p>`;
  return html`${library.value ? html`<${Picture} graph=${graph} />` : html`<${NotLoaded} failed=${failed} />`}
    ${graph.truncated && html`<p class="hint">The nearest channels: there may be more.</p>`}
    <h2>As text</h2>
    <${Sentences} graph=${graph} />`;
}

// Nodes and edges with their positions, from left to right in the direction of records.
function arranged({ channels, jobs }) {
  const { graphlib, layout } = library.value;
  const drawing = new graphlib.Graph({ multigraph: true });
  drawing.setGraph({ rankdir: "LR", nodesep: 22, ranksep: 40, marginx: MARGIN, marginy: MARGIN });
  // Prefixes keep channels and jobs with equal names apart.
  for (const line of channels) drawing.setNode(`c:${line.channel.name}`, { ...NODE, line });
  for (const job of jobs) {
    drawing.setNode(`j:${job.id}`, { ...NODE, job });
    for (const edge of job.edges) {
      const ends = [`j:${job.id}`, `c:${edge.channel}`];
      const [from, to] = edge.role === "writer" ? ends : ends.toReversed();
      drawing.setEdge(from, to, { edge, width: edgeText(edge).length * CHARACTER_PX, height: 16, labelpos: "c" }, edge.role);
    }
  }
  layout(drawing);
  const nodes = drawing.nodes().map((id) => ({ id, ...drawing.node(id) }));
  const edges = drawing.edges().map(({ v, w, name }) => ({ id: `${v}/${w}/${name}`, from: drawing.node(v), to: drawing.node(w), ...drawing.edge(v, w, name) }));
  const columns = columnsOf([...nodes, ...edges]);
  return {
    width: drawing.graph().width,
    height: drawing.graph().height,
    nodes,
    edges: edges.map((edge) => ({ ...edge, points: routed(edge, columns) })),
  };
}

// Half of the width of each column of nodes or of labels, by its centre.
function columnsOf(boxes) {
  const columns = new Map();
  for (const { x, width } of boxes) {
    const centre = Math.round(x);
    columns.set(centre, Math.max(columns.get(centre) ?? 0, width / 2));
  }
  return columns;
}

// The points of an edge. Within a column it is level, where the layout has kept room for it, and it slants between
// columns: a straight line from node to node would cross the labels and nodes of others.
function routed({ from, to, points }, columns) {
  const forward = from.x < to.x ? 1 : -1;
  const level = points.slice(1, -1).flatMap(({ x, y }) => {
    const half = columns.get(Math.round(x)) ?? 0;
    return [{ x: x - forward * half, y }, { x: x + forward * half, y }];
  });
  return [{ x: from.x + (forward * NODE.width) / 2, y: from.y }, ...level, { x: to.x - (forward * NODE.width) / 2, y: to.y }];
}

function Picture({ graph }) {
  const { width, height, nodes, edges } = useMemo(() => arranged(graph), [graph]);
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Picture">
    <svg class="graph" width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} role="group" aria-label="Writers, channels and readers">
      <defs><marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0 L10 5 L0 10 z" /></marker></defs>
      ${edges.map(({ id, points, edge, x, y }) => html`<g key=${id} class=${`edge ${edgeKind(edge)}`} aria-hidden="true"><path d=${path(points)} marker-end="url(#arrow)" /><text x=${x} y=${y - 4} text-anchor="middle">${edgeText(edge)}</text></g>`)}
      ${nodes.map((node) => html`<foreignObject key=${node.id} x=${node.x - NODE.width / 2} y=${node.y - NODE.height / 2} ...${NODE}>${node.line ? html`<${ChannelNode} line=${node.line} current=${node.line.channel.name === graph.channel} />` : html`<${JobNode} job=${node.job} />`}</foreignObject>`)}
    </svg>
  </div>`;
}

const path = ([first, ...rest]) => `M${first.x} ${first.y} ${rest.map(({ x, y }) => `L${x} ${y}`).join(" ")}`;

const edgeKind = ({ live, lost, failed }) => (lost || failed ? "error" : live ? "good" : "idle");

function edgeText({ live, lost, failed, finished }) {
  const parts = [[live, "running"], [lost, "lost"], [failed, "failed"]].filter(([number]) => number > 0);
  return (parts.length ? parts : [[finished, "finished"]]).map(([number, word]) => `${whole(number)} ${word}`).join(", ");
}

function ChannelNode({ line, current }) {
  const { name } = line.channel;
  return html`<div class=${`node channel ${current ? "current" : ""}`}>
    <a href=${href(["channels", name], { tab: "graph" })} aria-current=${current ? "page" : undefined}><${Text} value=${name} /></a>
    <small><${State} ...${lineState(line)} />${!isUnknown(line.lag_messages) && html` · lag ${count(line.lag_messages)}`}</small>
  </div>`;
}

function JobNode({ job }) {
  return html`<div class="node job"><b><${JobName} job=${job} /></b><small><${JobFacts} job=${job} /></small></div>`;
}

const JobName = ({ job }) => (isUnknown(job.name) ? "without a name" : html`<${Text} value=${job.name} />`);

function JobFacts({ job: { spark, processes, name } }) {
  if (!spark) return `${whole(processes)} ${processes === 1 ? "process" : "processes"}`;
  const application = spark.application !== name && spark.application;
  return html`Spark ${application && html`<${Text} value=${application} />`}${safeAddress(spark.ui) && html` <a href=${spark.ui} rel="noreferrer noopener" target="_blank">UI</a>`}`;
}

// Drivers report these addresses: only http and https become links.
export const safeAddress = (address) => /^https?:\/\//i.test(address ?? "");

function Sentences({ graph }) {
  const linked = (channel, role) => graph.jobs.flatMap((job) => job.edges.filter((edge) => edge.channel === channel && edge.role === role).map((edge) => ({ job, edge })));
  const part = (words, none, found) =>
    found.length ? html`${words} ${found.map(({ job, edge }, index) => html`${index > 0 && ", "}<${JobName} job=${job} /> (${edgeText(edge)})`)}` : none;
  return html`<ul class="sentences">${graph.channels.map(({ channel: { name } }) => html`<li key=${name}><a href=${href(["channels", name], { tab: "graph" })}><${Text} value=${name} /></a>:
    ${" "}${part("written by", "without a writer", linked(name, "writer"))}; ${part("read by", "without a reader", linked(name, "reader"))}.</li>`)}</ul>`;
}
