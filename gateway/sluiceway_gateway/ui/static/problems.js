// Problems as sentences: what is wrong, since when, where its cause is, and what to do.

import { ago, isUnknown, Text, whole } from "./format.js";
import { href } from "./router.js";
import { html } from "./view.js";

const wait = (count, what = "") => `${whole(count)} ${count === 1 ? "message" : "messages"}${what} ${count === 1 ? "waits" : "wait"}`;
// "The writer loader (0) is".
function subject(role, { group, index }, verb = "is") {
  return html`The ${role} ${group ? html`<${Text} value=${group} />` : "without a group"}${isUnknown(index) ? "" : ` (${index})`} ${verb}`;
}

// Of writers and readers that failed, or were lost without a group, within the last day, only the last one is listed.
export const isEnded = ({ failures }) => !isUnknown(failures);
const others = ({ failures = 0 }) => (failures > 1 ? html` It is the last of ${whole(failures)} failures within a day.` : "");

const lag = ({ lag_messages: count }) => (isUnknown(count) ? "" : ` ${wait(count)}.`);

const GROUP = "group of readers";
const WRITER_GONE = "Start it again, or dismiss it, so that readers take it as finished";
const READER_GONE = "Start it again, or dismiss it";

// By code: the sentence, the short word for the list, the tab that shows the cause, and what to do.
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
    advice: "See whether the brokers are up and the gateway reaches them",
    sentence: () => html`Kafka gives no offsets.`,
  },
  channel_halted: {
    word: "Halted",
    tab: "commits",
    advice: "A command repairs it",
    sentence: () => html`The channel is halted: nothing may be read or written.`,
  },
  writer_lost: {
    word: "Writer lost",
    tab: "endpoints",
    advice: WRITER_GONE,
    sentence: (fact) => html`${subject("writer", fact)} lost: no heartbeats arrive.${others(fact)}`,
  },
  writer_failed: {
    word: "Writer failed",
    tab: "endpoints",
    advice: WRITER_GONE,
    sentence: (fact) => html`${subject("writer", fact, "has")} failed.${others(fact)}`,
  },
  reader_lost: {
    word: "Reader lost",
    tab: "endpoints",
    advice: READER_GONE,
    sentence: (fact) => html`${subject("reader", fact)} lost: no heartbeats arrive.${lag(fact)}${others(fact)}`,
  },
  reader_failed: {
    word: "Reader failed",
    tab: "endpoints",
    advice: READER_GONE,
    sentence: (fact) => html`${subject("reader", fact, "has")} failed.${others(fact)}`,
  },
  reader_stalled: {
    word: "Reader stalled",
    tab: "readers",
    advice: "Look at its program: it is busy with one record, hangs, or cannot reach Kafka",
    sentence: (fact) => html`${subject(GROUP, fact)} stalled: alive, but nothing is read.${lag(fact)}`,
  },
  reader_stopped: {
    word: "No reader",
    tab: "readers",
    advice: "Start a reader of the group",
    sentence: (fact) => html`${subject(GROUP, fact)} without a live reader.${lag(fact)}`,
  },
  batch_holds_readers: {
    word: "Batch holds readers",
    tab: "commits",
    advice: "It ends with its job, or with its lease. If the job is gone, abort the batch",
    sentence: ({ batch, owner, held_messages: held }) =>
      html`Open batch <${Text} value=${batch} />${owner ? html` of <${Text} value=${owner} />` : ""} holds
        readers back: ${isUnknown(held) ? "messages of later batches wait" : wait(held, " of later batches")} for it.`,
  },
  not_converging: {
    word: "Falling behind",
    tab: "readers",
    advice: "Add members, one per partition at most, or make each of them faster",
    sentence: (fact) => html`${subject(GROUP, fact)} falling behind: the lag does not shrink.${lag(fact)}`,
  },
  position_out_of_range: {
    word: "Out of range",
    tab: "readers",
    advice: "A reader that starts there fails. Find out what was lost, then reset the group's offsets",
    sentence: (fact) => html`${subject(GROUP, fact)} at positions that Kafka does not have.`,
  },
  partitions_unread: {
    word: "Partitions unread",
    tab: "readers",
    advice: "Start the missing members. Members of older clients read added partitions after a restart",
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

export function ProblemSentence({ fact, channel }) {
  const kind = kindOf(fact.code);
  const since = !isUnknown(fact.since) && html` <span class="since">${ago(fact.since)}</span>`;
  const reason = fact.reason && html`${since && html` <span class="since">·</span>`} <${Text} class="reason" value=${fact.reason} />`;
  return html`<span class="sentence">
    ${channel && html`<a href=${href(["channels", channel], { tab: kind.tab })}><${Text} value=${channel} /></a>: `}
    ${kind.sentence(fact)}${since}${reason}
  </span>`;
}

const TAB_TITLES = { commits: "Commits", configuration: "Configuration", endpoints: "Endpoints", readers: "Readers" };

// What to do about it, and the tab for that.
export function Advice({ name, fact }) {
  const { advice, tab } = kindOf(fact.code);
  return html`<span class="advice">${advice && `${advice}. `}See <a href=${href(["channels", name], { tab })}>${TAB_TITLES[tab]}</a>.</span>`;
}

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
