// Problems: what is wrong and since when in a line, and on demand the cause and what to do.

import { ago, isUnknown, Text, whole } from "./format.js";
import { href } from "./router.js";
import { html, useState } from "./view.js";

const wait = (count, what = "") => `${whole(count)} ${count === 1 ? "message" : "messages"}${what} ${count === 1 ? "waits" : "wait"}`;
// "The writer loader (0) is", without a group "The writer 91f603d5 is".
function subject(role, { group, index, endpoint }, verb = "is") {
  const name = group || (isUnknown(endpoint) ? "without a group" : endpoint.slice(0, 8));
  return html`The ${role} <${Text} value=${name} />${!group || isUnknown(index) ? "" : ` (${index})`} ${verb}`;
}

// Of writers and readers that failed, or were lost without a group, within the last day, only the last one is listed.
export const isEnded = ({ failures }) => !isUnknown(failures);
const others = ({ failures = 0 }) => (failures > 1 ? html` It is the last of ${whole(failures)} failures within a day.` : "");

const lag = ({ lag_messages: count }) => (isUnknown(count) ? "" : ` ${wait(count)}.`);

const GROUP = "group of readers";

// By code: the sentence, the short word for the list, and the tab that shows the cause.
const KINDS = {
  channel_failed: {
    word: "Failed",
    tab: "configuration",
    sentence: () => html`The channel has failed.`,
  },
  channel_not_synced: {
    word: "Not synced",
    tab: "configuration",
    sentence: () => html`The topic does not match the spec.`,
  },
  partitions_unavailable: {
    word: "Kafka unavailable",
    tab: "readers",
    sentence: () => html`Kafka gives no offsets.`,
  },
  channel_halted: {
    word: "Halted",
    tab: "commits",
    sentence: () => html`The channel is halted: nothing may be read or written.`,
  },
  writer_lost: {
    word: "Writer lost",
    tab: "endpoints",
    sentence: (fact) => html`${subject("writer", fact)} lost: no heartbeats arrive.${others(fact)}`,
  },
  writer_failed: {
    word: "Writer failed",
    tab: "endpoints",
    sentence: (fact) => html`${subject("writer", fact, "has")} failed.${others(fact)}`,
  },
  reader_lost: {
    word: "Reader lost",
    tab: "endpoints",
    sentence: (fact) => html`${subject("reader", fact)} lost: no heartbeats arrive.${lag(fact)}${others(fact)}`,
  },
  reader_failed: {
    word: "Reader failed",
    tab: "endpoints",
    sentence: (fact) => html`${subject("reader", fact, "has")} failed.${others(fact)}`,
  },
  reader_stalled: {
    word: "Reader stalled",
    tab: "readers",
    sentence: (fact) => html`${subject(GROUP, fact)} stalled: alive, but nothing is read.${lag(fact)}`,
  },
  reader_stopped: {
    word: "No reader",
    tab: "readers",
    sentence: (fact) => html`${subject(GROUP, fact)} without a live reader.${lag(fact)}`,
  },
  batch_holds_readers: {
    word: "Batch holds readers",
    tab: "commits",
    sentence: ({ batch, owner, held_messages: held }) =>
      html`Open batch <${Text} value=${batch} />${owner ? html` of <${Text} value=${owner} />` : ""} holds
        readers back: ${isUnknown(held) ? "messages of later batches wait" : wait(held, " of later batches")} for it.`,
  },
  not_converging: {
    word: "Falling behind",
    tab: "readers",
    sentence: (fact) => html`${subject(GROUP, fact)} falling behind: the lag does not shrink.${lag(fact)}`,
  },
  position_out_of_range: {
    word: "Out of range",
    tab: "readers",
    sentence: (fact) => html`${subject(GROUP, fact)} at positions that Kafka does not have.`,
  },
  partitions_unread: {
    word: "Partitions unread",
    tab: "readers",
    sentence: (fact) => html`${subject(GROUP, fact)} not reading all partitions, and nobody else reads them for it.`,
  },
  suspect: {
    word: "Heartbeat late",
    tab: "endpoints",
    sentence: (fact) => html`${subject(fact.role, fact)} late with heartbeats.`,
  },
};

const kindOf = (code) =>
  KINDS[code] ?? { word: code.replaceAll("_", " "), tab: "readers", sentence: () => html`${code}.` };

export const problemWord = (fact) => kindOf(fact.code).word;

const TAB_TITLES = { commits: "Commits", configuration: "Configuration", endpoints: "Endpoints", readers: "Readers" };

// A problem in one line; on demand, its cause and what to do. `linked`: the line begins with a link to the channel.
export function Problem({ name, fact, linked = false }) {
  const [open, setOpen] = useState(false);
  const { sentence, tab } = kindOf(fact.code);
  const { severity, since, reason, advice } = fact;
  return html`<li class=${severity}>
    <div class="line"><span class="shape" aria-hidden="true">${severity === "error" ? "■" : "▲"}</span><span class="sr">${severity}: </span>
      <span class=${`sentence ${open ? "whole" : ""}`}>${linked && html`<a href=${href(["channels", name], { tab })}><${Text} value=${name} /></a>: `}${sentence(fact)}</span>
      ${!isUnknown(since) && html`<span class="since">${ago(since)}</span>`}
      <button class="disclosure" aria-expanded=${open} onClick=${() => setOpen(!open)}>Details<span class="sr"> of ${problemWord(fact)}${linked && ` in ${name}`}</span></button></div>
    ${open && html`<div class="advice">
      ${reason && html`<p><${Text} class="reason" value=${reason} /></p>`}
      <p>${advice && html`${withCommands(advice)}. `}See <a href=${href(["channels", name], { tab })}>${TAB_TITLES[tab]}</a>.</p></div>`}
  </li>`;
}

// A text whose commands are in backticks.
const withCommands = (text) => text.split("`").map((part, index) => (index % 2 ? html`<code>${part}</code>` : part));

const heldUp = ({ lag_messages: lag, held_messages: held }) => held ?? lag ?? 0;

// All problems of the channels: live ones before failures, errors first; of them the first one of each channel, so that
// a channel with many hides no other; then those that hold up the most messages, then the newest.
export function allProblems(channels) {
  const found = channels.flatMap((line) =>
    line.problems.map((fact, place) => ({ fact, channel: line.channel.name, isFirst: place === 0 })),
  );
  const order = ({ fact }) => (isEnded(fact) ? 2 : fact.severity === "error" ? 0 : 1);
  return found.sort(
    (one, other) =>
      order(one) - order(other) ||
      other.isFirst - one.isFirst ||
      heldUp(other.fact) - heldUp(one.fact) ||
      (other.fact.since ?? "").localeCompare(one.fact.since ?? "") ||
      one.channel.localeCompare(other.channel),
  );
}
