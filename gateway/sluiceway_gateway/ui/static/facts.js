// Current problems as facts, from what the gateway says of a channel. Each has `code` and `severity`,
// and what is known of `group`, `index`, `role`, `times`, `since`, `lag_messages`, `reason`.

const error = (code, more) => ({ code, severity: "error", ...more });
const warning = (code, more) => ({ code, severity: "warning", ...more });

const PROGRESS = {
  stalled: (more) => error("reader_stalled", more),
  stopped: (more) => warning("reader_stopped", more),
  falling_behind: (more) => warning("not_converging", more),
};

const worstFirst = (facts) => facts.filter(Boolean).sort((one, other) => (one.severity === "error" ? 0 : 1) - (other.severity === "error" ? 0 : 1));

const known = new WeakMap();

// The problems of a line of the list, which has numbers of endpoints and its readers' worst progress.
export function factsOfLine(line) {
  let facts = known.get(line);
  if (!facts) {
    const { channel, writers, readers, progress, lag_messages } = line;
    facts = worstFirst([
      channel.phase === "failed" && error("channel_failed"),
      writers.lost > 0 && error("writer_lost", { times: writers.lost }),
      writers.failed > 0 && error("writer_failed", { times: writers.failed }),
      readers.lost > 0 && error("reader_lost", { times: readers.lost }),
      readers.failed > 0 && error("reader_failed", { times: readers.failed }),
      PROGRESS[progress]?.({ times: 1, lag_messages }),
    ]);
    known.set(line, facts);
  }
  return facts;
}

// The problems in the status of one channel, which names those concerned.
export function factsOfStatus({ channel, writers, readers, groups, ledger }) {
  return worstFirst([
    channel.phase === "failed" && error("channel_failed"),
    ledger?.halted && error("channel_halted", { reason: ledger.halted }),
    ...[...writers, ...readers].map(factOfEndpoint),
    ...groups.map(({ group, index, progress, lag_messages, drain_s }) => PROGRESS[progress]?.({ group, index, lag_messages, drain_s })),
    ...(ledger?.batches ?? []).map(({ key, owner, since, held_messages }) => held_messages > 0 && warning("batch_holds_readers", { batch: key, owner, since, held_messages })),
  ]);
}

function factOfEndpoint({ role, group, index, state, health, cause, changed_at }) {
  if (state === "closed") return null;
  const more = { role, group, index, since: changed_at, reason: cause };
  if (health === "lost") return error(`${role}_lost`, more);
  if (state === "error") return error(`${role}_failed`, more);
  return health === "suspect" && warning("suspect", more);
}
