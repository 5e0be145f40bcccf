// Numbers, times and durations in the reader's locale. Unknown is never zero.

import { serverNow } from "./api.js";
import { tick } from "./live.js";
import { html } from "./view.js";

const WHOLE = new Intl.NumberFormat();
const COMPACT = new Intl.NumberFormat(undefined, { notation: "compact", maximumSignificantDigits: 3 });
const RATE = new Intl.NumberFormat(undefined, { maximumSignificantDigits: 3, notation: "compact" });
const TIME = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const DATE_TIME = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const ZONED = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });

export const isUnknown = (value) => value === null || value === undefined;

export function Unknown({ why = "Unknown" }) {
  return html`<span class="unknown" role="img" aria-label=${why} title=${why}>–</span>`;
}

const known = (value, text, why) => (isUnknown(value) ? html`<${Unknown} why=${why} />` : text(value));

export const whole = (value) => WHOLE.format(value);

// A count in a table: short from 100,000 on, with the exact number as its title.
export const count = (value, why) =>
  known(
    value,
    (each) =>
      Math.abs(each) < 100_000
        ? WHOLE.format(each)
        : html`<span title=${WHOLE.format(each)}>${COMPACT.format(each)}</span>`,
    why,
  );

// A number of which every digit counts, such as an offset.
export const exact = (value, why) => known(value, whole, why);

export const rate = (value, why) => known(value, (each) => `${RATE.format(each)}/s`, why);

// A growth, with its sign in words of shape: ↗ ↘ →.
export function trend(value, why) {
  return known(
    value,
    (each) => {
      if (Math.abs(each) < 0.05) return html`<span title="The lag does not change">→ 0/s</span>`;
      const text = `${RATE.format(Math.abs(each))}/s`;
      return each > 0
        ? html`<span class="worse" title="The lag grows">↗<span class="sr"> grows by </span> ${text}</span>`
        : html`<span class="better" title="The lag shrinks">↘<span class="sr"> shrinks by </span> ${text}</span>`;
    },
    why,
  );
}

const UNITS = [
  ["day", 86_400],
  ["hour", 3_600],
  ["minute", 60],
  ["second", 1],
];
const UNIT_FORMATS = Object.fromEntries(
  UNITS.map(([unit]) => [
    unit,
    new Intl.NumberFormat(undefined, { style: "unit", unit, unitDisplay: "narrow", maximumFractionDigits: 0 }),
  ]),
);

// A duration with its two largest units: "2h 5m".
export function durationText(seconds) {
  let rest = Math.round(seconds);
  if (rest < 1) return UNIT_FORMATS.second.format(0);
  const parts = [];
  for (const [unit, size] of UNITS) {
    const times = Math.floor(rest / size);
    if (times || parts.length) parts.push(times && UNIT_FORMATS[unit].format(times));
    rest -= times * size;
    if (parts.length === 2) break;
  }
  return parts.filter(Boolean).join(" ");
}

export const duration = (seconds, { atLeast = false, why } = {}) =>
  known(
    seconds,
    (each) =>
      atLeast
        ? html`<span title="At least: the oldest message is older than the samples">≥ ${durationText(each)}</span>`
        : durationText(each),
    why,
  );

// The age of one of the server's times, by the server's clock.
export const ageOf = (time) => Math.max(0, (serverNow() - Date.parse(time)) / 1000);

export const ago = (time, why) => known(time, (each) => html`<${Ago} time=${each} />`, why);

// A component, so that a second later only the text is rendered again.
function Ago({ time }) {
  tick.value;
  return html`<time datetime=${time} title=${ZONED.format(new Date(time))}>${durationText(ageOf(time))} ago</time>`;
}

// A time of the server in the reader's zone, which the title names.
export const Moment = ({ time }) => html`<time datetime=${time} title=${ZONED.format(new Date(time))}>${dateTime(time)}</time>`;

export const dateTime = (time) => DATE_TIME.format(new Date(time));

// A time in the browser's zone, as its control takes it, and back.
export function localTime(time) {
  const moment = new Date(time);
  if (Number.isNaN(moment.getTime())) return "";
  return new Date(moment.getTime() - moment.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}

export const instant = (local) => (local ? new Date(local).toISOString() : "");

export const clockTime = (ms) => TIME.format(ms);

// Text of others: names, labels, causes. Isolated, so its direction does not reorder its neighbours;
// cut by CSS, with the whole text as the title.
export function Text({ value, class: className = "" }) {
  return html`<bdi class=${`text ${className}`} title=${value}>${value}</bdi>`;
}

// Seconds until the lag is zero at its present trend.
export function drainTime(group) {
  if (!group || isUnknown(group.lag_messages)) return duration(null, { why: "Unknown: nobody reads, or not sampled yet" });
  if (group.lag_messages === 0) return "drained";
  if (!isUnknown(group.drain_s)) return duration(group.drain_s);
  if (isUnknown(group.trend)) return duration(null, { why: "Unknown: too few samples" });
  return html`<span class="worse">not converging</span>`;
}
