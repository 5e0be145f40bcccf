// Updates of the view: by an event stream, by polling where a proxy buffers it, and pause.

import { ApiError, NoResponse } from "./api.js";
import { PollInstead, readEvents } from "./stream.js";
import { computed, effect, signal, untracked } from "./view.js";

const POLL_MS = 2_000;
// How long a view polls before it tries its stream again: a network that hung looks like a proxy that buffers.
const RETRY_STREAM_MS = 60_000;
const MAX_BACKOFF_MS = 5_000;
// The gateway sends a line every 2 s, and polls come as often. With the second of the tick, the header says within
// five seconds that nothing arrives.
const SILENCE_MS = 3_500;

export const paused = signal(false);
const way = signal("connecting");
// When the view's data last arrived, by this machine's monotonic clock.
export const receivedAt = signal(null);
// Why there is no connection, in words.
export const failure = signal(null);

const hidden = signal(document.hidden);
document.addEventListener("visibilitychange", () => {
  hidden.value = document.hidden;
});

// Whether views read: not while the page is paused or hidden.
export const isReading = () => !paused.value && !hidden.value;

// Seconds that have passed, for texts such as "updated 3 s ago".
export const tick = signal(0);
setInterval(() => {
  tick.value += 1;
}, 1000);

// When something last arrived, or was first asked for.
const heardAt = signal(performance.now());

// How the shown view is kept up to date: "connecting", "live", "polling" or "offline". A gateway that hangs is away, too.
export const mode = computed(() => {
  tick.value;
  return isReading() && performance.now() - heardAt.value > SILENCE_MS ? "offline" : way.value;
});

function received(source) {
  source.receivedAt = receivedAt.value = heardAt.value = performance.now();
  failure.value = null;
}

// Keep a view up to date until the returned function is called. `source` has `stream`, a path; `onEvent`, for
// each event; `poll`, which reads the same without a stream; and `onGone`, for errors that will not pass. Its
// `receivedAt` and `hasData` are kept for the next time it is followed. While the page is hidden or paused nothing is read: a
// browser has six connections to a gateway for all of its tabs. A paused view that has nothing to show is read once.
export function follow(source) {
  way.value = "connecting";
  receivedAt.value = source.receivedAt ?? null;
  failure.value = null;
  return effect(() => {
    const once = paused.value;
    if (hidden.value || (once && source.hasData)) return undefined;
    const abort = new AbortController();
    heardAt.value = performance.now();
    untracked(() => keepReading(source, abort.signal, once));
    return () => abort.abort();
  });
}

async function keepReading(source, signal, once) {
  let attempt = 0;
  while (!signal.aborted) {
    try {
      if (once || performance.now() < (source.pollsUntil ?? 0)) {
        await source.poll(signal);
        source.hasData = true;
        received(source);
        way.value = "polling";
        if (once) return;
        attempt = 0;
        await pause(POLL_MS, signal);
        continue;
      }
      await readEvents(source.stream, {
        lastId: source.lastId,
        signal,
        onActivity: () => {
          attempt = 0;
          received(source);
          way.value = "live";
        },
        onEvent: (event) => {
          if (event.id) source.lastId = event.id;
          source.onEvent(event);
          source.hasData = true;
        },
      });
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof PollInstead) {
        source.pollsUntil = performance.now() + RETRY_STREAM_MS;
        continue;
      }
      // 422: no name of a channel, as in a link that was typed.
      if (error instanceof ApiError && [401, 403, 404, 422].includes(error.status)) {
        source.onGone(error);
        return;
      }
      way.value = "offline";
      const explained = error instanceof ApiError || error instanceof NoResponse;
      failure.value = explained ? error.message : "The gateway does not answer.";
    }
    attempt += 1;
    await pause(Math.min(MAX_BACKOFF_MS, 250 * 2 ** attempt) * (0.5 + Math.random() / 2), signal);
  }
}

function pause(ms, signal) {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      // Otherwise a page that polls for days keeps a listener for each pause.
      signal.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    signal.addEventListener("abort", end);
  });
}
