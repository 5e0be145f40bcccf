// Server-sent events over fetch: unlike EventSource, it can send a bearer token.

import { FOREIGN, NoResponse, send } from "./api.js";

// The gateway sends at least a comment every 2 s.
const SILENCE_MS = 10_000;
// The gateway sends a first line at once; a proxy that buffers keeps it.
const FIRST_MS = 3_000;

// The stream is buffered on the way: the page has to poll instead.
export class PollInstead extends Error {}

// Read events until the stream ends; calls onEvent({ event, data, id }) with each, and onActivity with
// all that arrives, comments included. Raises PollInstead if nothing arrives within three seconds of the start,
// and NoResponse if the response is no stream.
export async function readEvents(path, { lastId, onEvent, onActivity, signal }) {
  const silent = new AbortController();
  const abort = () => silent.abort();
  signal.addEventListener("abort", abort);
  let timer = setTimeout(() => silent.abort(new PollInstead()), FIRST_MS);
  try {
    const headers = { Accept: "text/event-stream", ...(lastId && { "Last-Event-ID": lastId }) };
    const response = await send(path, { headers, signal: silent.signal, timeoutMs: null });
    if (!response.headers.get("Content-Type")?.startsWith("text/event-stream")) throw new NoResponse(FOREIGN);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    const parser = new Parser();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(abort, SILENCE_MS);
      onActivity();
      parser.push(value).forEach(onEvent);
    }
  } catch (error) {
    if (silent.signal.reason instanceof PollInstead) throw silent.signal.reason;
    throw error;
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", abort);
    silent.abort();
  }
}

// Read a response's lines as they come, until it ends.
export async function readLines(path, { signal, onLine }) {
  const response = await send(path, { signal, timeoutMs: null });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let parts = [];
  for (;;) {
    const { done, value } = await reader.read().catch((error) => {
      if (signal.aborted) throw error;
      throw new NoResponse("The gateway's response broke off.");
    });
    if (done) return;
    const [first, ...rest] = value.split("\n");
    parts.push(first);
    for (const part of rest) {
      onLine(parts.join(""));
      parts = [part];
    }
  }
}

// Parser of event streams, without `retry`: the page has its own pauses. An event may arrive in many
// parts; each is parsed once.
class Parser {
  #held = "";
  #line = "";
  #fields = {};

  push(text) {
    // A line may end with \r\n, whose \n may come later.
    const given = this.#held + text;
    this.#held = given.endsWith("\r") ? "\r" : "";
    const lines = given.slice(0, given.length - this.#held.length).split(/\r\n|\n|\r/);
    lines[0] = this.#line + lines[0];
    this.#line = lines.pop();
    return lines.map((line) => this.#take(line)).filter(Boolean);
  }

  // Return the event that the line ends.
  #take(line) {
    const fields = this.#fields;
    if (line === "") {
      this.#fields = {};
      return fields.data === undefined ? null : { event: "message", ...fields };
    }
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") fields.data = fields.data === undefined ? value : `${fields.data}\n${value}`;
    else if (name === "event" || name === "id") fields[name] = value;
    return null;
  }
}
