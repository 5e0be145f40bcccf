// States in words and shapes. A colour only repeats what the word says.

import { isUnknown, Unknown } from "./format.js";
import { isEnded, problemWord } from "./problems.js";
import { html } from "./view.js";

const SHAPES = { good: "●", warning: "▲", error: "■", idle: "○", busy: "◐" };

export function State({ kind, word, why }) {
  return html`<span class=${`state ${kind}`} title=${why}><span class="shape" aria-hidden="true">${SHAPES[kind]}</span>${word}</span>`;
}

const PHASES = {
  provisioning: ["busy", "Provisioning"],
  failed: ["error", "Failed"],
  closing: ["busy", "Draining"],
  closed: ["idle", "Closed"],
  deleting: ["busy", "Deleting"],
};
const PROGRESS = {
  ok: ["good", "OK"],
  held_back: ["warning", "Held back"],
  falling_behind: ["warning", "Falling behind"],
  stalled: ["error", "Stalled"],
  stopped: ["warning", "No reader"],
  rewound: ["warning", "Rewound"],
};
const ENDPOINT = {
  opened: ["busy", "Opened"],
  started: ["good", "Running"],
  stopped: ["idle", "Stopped"],
  closed: ["idle", "Finished"],
  error: ["error", "Failed"],
};

export const ProgressState = ({ progress }) => {
  if (isUnknown(progress)) return html`<${Unknown} why="Unknown: too few samples" />`;
  const [kind, word] = PROGRESS[progress] ?? ["idle", progress];
  return html`<${State} kind=${kind} word=${word} />`;
};

// The gateway's judgement by heartbeats comes before the endpoint's own report.
export const EndpointState = ({ endpoint: { state, health } }) => {
  if (state !== "closed" && health === "lost") return html`<${State} kind="error" word="Lost" />`;
  if (state !== "closed" && health === "suspect") return html`<${State} kind="warning" word="Heartbeat late" />`;
  const [kind, word] = ENDPOINT[state] ?? ["idle", state];
  return html`<${State} kind=${kind} word=${word} />`;
};

// The state of a channel in the list: its worst problem, else its phase, else its readers' progress.
// `rank` sorts the worst first.
export function lineState(line) {
  const [worst] = line.problems;
  if (worst) {
    const kind = worst.severity === "error" ? "error" : "warning";
    return { kind, word: problemWord(worst), rank: isEnded(worst) ? 2 : kind === "error" ? 0 : 1 };
  }
  const { phase } = line.channel;
  const [kind, word] = PHASES[phase] ?? PROGRESS[line.progress] ?? ["good", "Ready"];
  return { kind, word, rank: { error: 0, warning: 1, busy: 3, good: 4, idle: 5 }[kind] };
}
