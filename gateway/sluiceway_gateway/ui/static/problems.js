// Problems as sentences: what is wrong, since when, and where its cause is.

import { ago, isUnknown, Text, whole } from "./format.js";
import { href } from "./router.js";
import { html } from "./view.js";

const messages = (count) => `${whole(count)} ${count === 1 ? "message" : "messages"}`;
// "The writer loader (0) is".
function subject(role, { group, index }) {
  return html`The ${role} ${group ? html`<${Text} value=${group} />` : "without a group"}${isUnknown(index) ? "" : ` (${index})`} is`;
}

const lag = ({ lag_messages: count }) => (isUnknown(count) ? "" : ` ${messages(count)} wait.`);

const GROUP = "group of readers";

// By code: the sentence, the short word for the list, and the tab that shows the cause.
const KINDS = {
  channel_failed: {
    word: "Failed",
    tab: "configuration",
    sentence: () => html`The channel has failed.`,
  },
  channel_halted: {
    word: "Halted",
    tab: "commits",
    sentence: () => html`The channel is halted: nothing may be read or written.`,
  },
  writer_lost: {
    word: "Writer lost",
    tab: "endpoints",
    sentence: (fact) => html`${subject("writer", fact)} lost: no heartbeats arrive.`,
  },
  writer_failed: {
    word: "Writer failed",
    tab: "endpoints",
    sentence: (fact) => html`${subject("writer", fact)} in error.`,
  },
  reader_lost: {
    word: "Reader lost",
    tab: "endpoints",
    sentence: (fact) => html`${subject("reader", fact)} lost: no heartbeats arrive.${lag(fact)}`,
  },
  reader_failed: {
    word: "Reader failed",
    tab: "endpoints",
    sentence: (fact) => html`${subject("reader", fact)} in error.${lag(fact)}`,
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
        readers back: ${isUnknown(held) ? "messages" : messages(held)} of later batches wait for it.`,
  },
  not_converging: {
    word: "Falling behind",
    tab: "readers",
    sentence: (fact) => html`${subject(GROUP, fact)} falling behind: the lag does not shrink.${lag(fact)}`,
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
  const reason = fact.reason && html` <${Text} class="reason" value=${fact.reason} />`;
  return html`<span class="sentence">
    ${channel && html`<a href=${href(["channels", channel], { tab: kind.tab })}><${Text} value=${channel} /></a>: `}
    ${kind.sentence(fact)}${reason}
    ${!isUnknown(fact.since) && html` <span class="since">${ago(fact.since)}</span>`}
  </span>`;
}

// All problems of the channels, errors first, the newest of them first.
export function allProblems(channels) {
  const found = channels.flatMap((line) =>
    line.problems.map((fact) => ({ fact, channel: line.channel.name })),
  );
  const order = ({ fact }) => (fact.severity === "error" ? 0 : 1);
  return found.sort(
    (one, other) =>
      order(one) - order(other) ||
      (other.fact.since ?? "").localeCompare(one.fact.since ?? "") ||
      one.channel.localeCompare(other.channel),
  );
}
