// The page of one channel.

import { channelActions } from "./actions.js";
import { channelPath, getJson } from "./api.js";
import { Changes } from "./changes.js";
import { Charts } from "./charts.js";
import { Commits } from "./commits.js";
import { Configuration } from "./configuration.js";
import { Dialog } from "./dialog.js";
import { Endpoints } from "./endpoints.js";
import { count, drainTime, duration, isUnknown, rate, Text, trend, whole } from "./format.js";
import { Graph } from "./graph.js";
import { follow } from "./live.js";
import { Messages } from "./messages.js";
import { Problem } from "./problems.js";
import { Readers } from "./readers.js";
import { hasFollowed, href, route } from "./router.js";
import { Schemas } from "./schemas.js";
import { lineState, State } from "./states.js";
import { html, useEffect, useRef, useState } from "./view.js";

const TABS = [
  { id: "readers", title: "Readers", view: Readers },
  { id: "charts", title: "Charts", view: Charts },
  { id: "graph", title: "Graph", view: Graph },
  { id: "endpoints", title: "Endpoints", view: Endpoints },
  { id: "messages", title: "Messages", view: Messages },
  { id: "commits", title: "Commits", view: Commits, shown: (status) => status.channel.delivery === "exactly_once" },
  { id: "schema", title: "Schema", view: Schemas },
  { id: "changes", title: "Changes", view: Changes },
  { id: "configuration", title: "Configuration", view: Configuration },
];

export function ChannelPage({ name }) {
  const [status, setStatus] = useState(null);
  const [gone, setGone] = useState(null);
  useEffect(() => {
    document.title = `${name} · Sluiceway`;
    return follow({
      stream: channelPath(name, "status", "events"),
      onEvent: ({ data }) => setStatus(JSON.parse(data)),
      poll: async (signal) => setStatus(await getJson(channelPath(name, "status"), { signal })),
      onGone: (error) => error.status !== 401 && setGone(error),
    });
  }, []);
  if (!status) {
    return html`<main>${gone ? html`<${Gone} error=${gone} name=${name} /><${Changes} name=${name} status=${null} />` : html`<p class="loading">Reading the channel</p>`}</main>`;
  }
  const { query } = route.value;
  const tabs = TABS.filter((each) => !each.shown || each.shown(status));
  const tab = tabs.find((each) => each.id === query.tab) ?? tabs[0];
  return html`<main class="channel">
    ${gone && html`<${Gone} error=${gone} name=${name} shown />`}
    <${Summary} name=${name} status=${status} gone=${gone !== null} />
    <nav class="tabs" aria-label="Parts of the channel">
      ${tabs.map((each) => html`<a key=${each.id} href=${href(["channels", name], { tab: each.id, range: query.range })} aria-current=${each === tab ? "page" : undefined}>${each.title}</a>`)}
    </nav>
    <section aria-label=${tab.title}>
      <${tab.view} key=${`${tab.id}/${status.channel.uid}`} name=${name} status=${status} />
    </section>
    <${Dialog} />
  </main>`;
}

function Gone({ error, name, shown = false }) {
  const text =
    [404, 422].includes(error.status)
      ? html`The channel <${Text} value=${name} /> does not exist${shown ? " any more: it was deleted. What you see is its last state" : ""}.`
      : error.message;
  return html`<p class="notice" role="alert">${text} <a href=${href([])}>All channels</a></p>`;
}

function Summary({ name, status, gone }) {
  const { channel, groups } = status;
  const slowest = groups.reduce((worst, each) => ((each.lag_messages ?? -1) > (worst?.lag_messages ?? -1) ? each : worst), null);
  const readRates = groups.map((each) => each.read_rate).filter((each) => !isUnknown(each));
  const { problems } = status;
  const heading = useRef(null);
  useEffect(() => {
    // The link that was followed is gone, and with it the place of the keyboard and of screen readers.
    if (hasFollowed() && document.activeElement === document.body) heading.current.focus({ preventScroll: true });
  }, []);
  return html`<section class="summary" aria-label="Summary">
    <div class="title">
      <h1 ref=${heading} tabindex="-1"><${Text} value=${name} /></h1>
      ${!gone && html`<${ChannelState} name=${name} status=${status} />`}
      <span class="labels">${Object.entries(channel.labels).map(([key, value]) => html`<${Text} class="label" value=${value ? `${key}=${value}` : key} />`)}</span>
      ${!gone && html`<span class="actions">${channelActions(name, status).map(({ title, onClick, disabled }) => html`<button key=${title} onClick=${onClick} disabled=${disabled}>${title}</button>`)}</span>`}
    </div>
    ${problems.length > 0 && html`<ul class="problems">
      ${problems.map((fact) => html`<${Problem} key=${`${fact.code}/${fact.endpoint ?? fact.batch ?? fact.group}/${fact.index}`} name=${name} fact=${fact} />`)}
      ${status.more_problems && html`<li><span class="hint">There are more: the first ${whole(problems.length)} are listed.</span></li>`}
    </ul>`}
    <dl class="figures">
      <${Figure} name="Lag" title="Of the slowest group, as are the next three">${count(slowest?.lag_messages, "Unknown: nobody reads, or not sampled yet")}</>
      <${Figure} name="Behind">${duration(slowest?.lag_seconds, { atLeast: slowest?.lag_seconds_at_least })}</>
      <${Figure} name="Trend">${trend(slowest?.trend)}</>
      <${Figure} name="Time to drain">${drainTime(slowest)}</>
      <${Figure} name="Written">${rate(status.write_rate)}</>
      <${Figure} name="Read" title="By all groups together">${rate(readRates.length ? readRates.reduce((sum, each) => sum + each) : null)}</>
      <${Figure} name="Writers">${whole(status.writers.filter(isLive).length)}</>
      <${Figure} name="Readers">${whole(status.readers.filter(isLive).length)}</>
    </dl>
  </section>`;
}

// Its phase or, of one that is ready, its worst problem. What a channel waits for is in its conditions.
function ChannelState({ name, status: { channel, problems } }) {
  const isReady = channel.phase === "ready";
  const state = html`<${State} ...${lineState({ channel, problems: isReady ? problems : [] })} />`;
  if (isReady || channel.phase === "closed") return state;
  return html`<a href=${href(["channels", name], { tab: "configuration" })} title="Why">${state}</a>`;
}

const isLive = ({ state, health }) => health !== "lost" && !["closed", "error"].includes(state);

function Figure({ name, title, children }) {
  return html`<div title=${title}><dt>${name}</dt><dd>${children}</dd></div>`;
}
