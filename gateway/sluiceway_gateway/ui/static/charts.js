// Lag and rates over time: charts, and the same values as a table.

import { channelPath, serverNow } from "./api.js";
import { count, dateTime, duration, durationText, isUnknown, rate, Text, whole } from "./format.js";
import { lazy, Loaded, NotLoaded, useResource, useVersion } from "./resource.js";
import { href, route } from "./router.js";
import { html, signal, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./view.js";

const RANGES = [
  { id: "15m", title: "15 minutes", seconds: 900, refreshS: 10 },
  { id: "1h", title: "1 hour", seconds: 3_600, refreshS: 10 },
  { id: "6h", title: "6 hours", seconds: 21_600, refreshS: 60 },
  { id: "24h", title: "24 hours", seconds: 86_400, refreshS: 60 },
];
// Maximum lines of a chart, whose colors are distinguishable.
const MAX_LINES = 8;
const DASHES = [[], [6, 3], [2, 3], [9, 3, 2, 3]];
const HEIGHT = 190;
// An idle channel is sampled once a minute.
const MAX_GAP_S = 90;
const COMPACT = new Intl.NumberFormat(undefined, { notation: "compact", maximumSignificantDigits: 3 });

const [library, load, failed] = lazy(async () => {
  const [module] = await Promise.all([
    import("./vendor/uplot/uPlot.esm.js"),
    stylesheet("ui/vendor/uplot/uPlot.min.css"),
  ]);
  return module.default;
});

function stylesheet(path) {
  return new Promise((resolve, reject) => {
    const link = document.createElement("link");
    const onerror = (event) => {
      link.remove();
      reject(event);
    };
    Object.assign(link, { rel: "stylesheet", href: path, onload: resolve, onerror });
    document.head.append(link);
  });
}

const dark = signal(matchMedia("(prefers-color-scheme: dark)").matches);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", ({ matches }) => {
  dark.value = matches;
});

export function Charts({ name }) {
  const range = RANGES.find((each) => each.id === route.value.query.range) ?? RANGES[1];
  const version = useVersion(range.refreshS * 1000);
  useEffect(load, []);
  const since = useMemo(() => new Date(serverNow() - range.seconds * 1000).toISOString(), [range, version]);
  const resource = useResource(`${channelPath(name, "history")}?since=${since}`);
  return html`<nav class="ranges" aria-label="Time range">${RANGES.map((each) => html`<a key=${each.id} href=${href(["channels", name], { tab: "charts", range: each.id })} aria-current=${each === range ? "true" : undefined}>${each.title}</a>`)}</nav>
    <${Loaded} resource=${resource} keep>${(history) => html`<${History} history=${history} range=${range} />`}</>`;
}

function History({ history, range }) {
  const [hidden, setHidden] = useState(new Set());
  // A signal, so that only the legend is rendered again when the pointer moves.
  const cursor = useMemo(() => signal(null), []);
  const groups = useMemo(() => ranked(history.groups), [history]);
  const times = useMemo(() => history.times.map((each) => Date.parse(each) / 1000), [history]);
  if (!history.times.length) return html`<p class="empty">No sample in this time. Channels are sampled while they have readers or writers.</p>`;
  const lined = groups.filter((each) => !hidden.has(each.group)).slice(0, MAX_LINES);
  const styles = new Map(groups.map((each, index) => [each.group, styleOf(index)]));
  const lines = (values) => lined.map((each) => ({ key: groupText(each.group), values: each[values], style: styles.get(each.group) }));
  const written = { key: "Written", values: history.write_rate, style: { color: "--text", dash: [] } };
  const shared = { times, stepS: history.step_s, range, cursor };
  return html`${!library.value && html`<${NotLoaded} failed=${failed} />`}<div class="charts">
      <${Chart} ...${shared} title="Lag in messages" series=${lines("lag_messages")} text=${(each) => COMPACT.format(each)} />
      <${Chart} ...${shared} title="Age of the oldest message to read" series=${lines("lag_seconds")} text=${durationText} />
      <${Chart} ...${shared} title="Messages per second, written and read" series=${[written, ...lines("read_rate")]} text=${(each) => `${COMPACT.format(each)}/s`} />
    </div>
    <${Legend} history=${history} groups=${groups} lined=${lined} styles=${styles} cursor=${cursor} setHidden=${setHidden} />
    <${Values} history=${history} groups=${lined} />`;
}

const groupText = (group) => (isUnknown(group) ? "without a group" : group);
const styleOf = (index) => ({ color: `--series-${(index % MAX_LINES) + 1}`, dash: DASHES[index % DASHES.length] });
const largest = (values) => values.reduce((most, each) => (isUnknown(each) || each <= most ? most : each), -1);

// By name or, if there are more than lines, by the largest lag.
function ranked(groups) {
  if (groups.length <= MAX_LINES) return groups;
  return groups.toSorted((one, other) => largest(other.lag_messages) - largest(one.lag_messages));
}

// Times and values for uPlot, with a gap wherever no sample was taken.
export function withGaps(times, stepS, series) {
  const limit = Math.max(MAX_GAP_S, 2.5 * stepS);
  const order = [];
  times.forEach((time, index) => {
    if (index > 0 && time - times[index - 1] > limit) order.push([times[index - 1] + stepS, null]);
    order.push([time, index]);
  });
  return [order.map(([time]) => time), ...series.map(({ values }) => order.map(([, index]) => (index === null ? null : values[index])))];
}

function Chart({ title, times, stepS, range, series, text, cursor }) {
  const place = useRef(null);
  const chart = useRef(null);
  const key = series.map((each) => `${each.key}/${each.style.color}`).join("\n");
  const data = withGaps(times, stepS, series);
  const scale = () => [times.at(-1) - range.seconds, times.at(-1)];
  const current = useRef(null);
  current.current = { scale, data };

  useLayoutEffect(() => {
    const uPlot = library.value;
    if (!uPlot) return undefined;
    const options = optionsOf(series, { text, range, cursor, scale: () => current.current.scale(), width: place.current.clientWidth });
    chart.current = new uPlot(options, current.current.data, place.current);
    const observer = new ResizeObserver(([entry]) => {
      const width = Math.floor(entry.contentRect.width);
      if (width > 0 && width !== chart.current.width) chart.current.setSize({ width, height: HEIGHT });
    });
    observer.observe(place.current);
    return () => {
      observer.disconnect();
      chart.current.destroy();
      chart.current = null;
    };
  }, [library.value, dark.value, key, range]);

  useLayoutEffect(() => {
    chart.current?.setData(data);
  }, [times]);

  return html`<figure>
    <figcaption>${title}</figcaption>
    <div class="chart" ref=${place} role="img" aria-label=${spoken(title, range, series, text)}></div>
  </figure>`;
}

// "Lag in messages, the last 1 hour: delays 12 now, at most 400."
function spoken(title, range, series, text) {
  const parts = series.map(({ key, values }) => {
    const now = values.at(-1);
    const most = largest(values);
    return `${key} ${isUnknown(now) ? "unknown" : text(now)} now${most < 0 ? "" : `, at most ${text(most)}`}`;
  });
  return `${title}, the last ${range.title}: ${parts.length ? parts.join("; ") : "no group"}.`;
}

function optionsOf(series, { text, range, cursor, scale, width }) {
  const variables = getComputedStyle(document.documentElement);
  const color = (name) => variables.getPropertyValue(name).trim();
  const clock = new Intl.DateTimeFormat(undefined, { timeStyle: range.seconds <= 900 ? "medium" : "short" });
  const axis = { stroke: color("--muted"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 }, font: "12px system-ui, sans-serif" };
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { sync: { key: "history" }, drag: { x: false, y: false } },
    scales: { x: { range: scale }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.08 : 1] } },
    axes: [
      { ...axis, space: 90, size: 34, values: (_, splits) => splits.map((each) => clock.format(each * 1000)) },
      { ...axis, size: 68, values: (_, splits) => splits.map(text) },
    ],
    series: [{}, ...series.map(({ style }) => ({ stroke: color(style.color), width: 2, dash: style.dash, points: { size: 5, fill: color("--surface") } }))],
    hooks: { setCursor: [({ cursor: { idx }, data }) => (cursor.value = isUnknown(idx) ? null : data[0][idx])] },
  };
}

function Legend({ history, groups, lined, styles, cursor, setHidden }) {
  const time = cursor.value;
  const at = time === null ? -1 : history.times.findIndex((each) => Date.parse(each) / 1000 === time);
  const index = at < 0 ? history.times.length - 1 : at;
  const toggle = (group) =>
    setHidden((old) => {
      const next = new Set(old);
      if (!next.delete(group)) next.add(group);
      return next;
    });
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Groups"><table class="legend">
    <caption>At ${dateTime(history.times[index])}: written ${rate(history.write_rate[index])}</caption>
    <thead><tr><th scope="col">Group</th><th scope="col" class="numeric">Lag</th><th scope="col" class="numeric">Largest</th><th scope="col" class="numeric">Behind</th><th scope="col" class="numeric">Largest</th><th scope="col" class="numeric">Read</th></tr></thead>
    <tbody>${groups.map((each) => html`<tr key=${each.group}>
      <th scope="row"><label class="check"><input type="checkbox" checked=${lined.includes(each)} disabled=${!lined.includes(each) && lined.length >= MAX_LINES} onChange=${() => toggle(each.group)} />
        <${Swatch} style=${styles.get(each.group)} /><${Text} value=${groupText(each.group)} /></label></th>
      <td class="numeric">${count(each.lag_messages[index])}</td><td class="numeric">${count(known(largest(each.lag_messages)))}</td>
      <td class="numeric">${duration(each.lag_seconds[index], { atLeast: each.lag_seconds_at_least[index] })}</td><td class="numeric">${duration(known(largest(each.lag_seconds)))}</td>
      <td class="numeric">${rate(each.read_rate[index])}</td></tr>`)}</tbody>
  </table></div>
  ${groups.length > MAX_LINES && html`<p class="hint">${whole(MAX_LINES)} of ${whole(groups.length)} groups have lines: untick some to see others.</p>`}
  ${groups.length === 0 && html`<p class="empty">No group has read in this time.</p>`}`;
}

const known = (value) => (value < 0 ? null : value);

function Swatch({ style }) {
  return html`<svg class="swatch" width="26" height="8" aria-hidden="true"><line x1="1" y1="4" x2="25" y2="4" stroke-width="3" stroke-dasharray=${style.dash.join(" ")} class=${style.color.slice(2)} /></svg>`;
}

// All values as text, for screen readers.
function Values({ history, groups }) {
  const [open, setOpen] = useState(false);
  return html`<button class="disclosure" aria-expanded=${open} onClick=${() => setOpen(!open)}>Values as a table</button>
    ${open && html`<div class="scroll values-over-time" tabindex="0" role="region" aria-label="Values over time"><table>
      <thead>
        <tr><th scope="col" rowspan="2">From</th><th scope="col" rowspan="2" class="numeric">Written</th>${groups.map((each) => html`<th scope="colgroup" colspan="3"><${Text} value=${groupText(each.group)} /></th>`)}</tr>
        <tr>${groups.map(() => html`<th scope="col" class="numeric">Lag</th><th scope="col" class="numeric">Behind</th><th scope="col" class="numeric">Read</th>`)}</tr>
      </thead>
      <tbody>${history.times.map((time, index) => html`<tr key=${time}><th scope="row"><time datetime=${time}>${dateTime(time)}</time></th><td class="numeric">${rate(history.write_rate[index])}</td>
        ${groups.map((each) => html`<td class="numeric">${count(each.lag_messages[index])}</td><td class="numeric">${duration(each.lag_seconds[index], { atLeast: each.lag_seconds_at_least[index] })}</td><td class="numeric">${rate(each.read_rate[index])}</td>`)}</tr>`).reverse()}</tbody>
    </table></div>`}`;
}
