// Requests to the public HTTP interface, with the token of this tab.

import { account, signInReason, signOut, token } from "./token.js";

// By the server's clock minus this machine's, in ms, from events and the header Date of responses.
let skew = 0;

export function setServerTime(ms) {
  skew = ms - Date.now();
}

// How long a response may take; that of an action may take longer.
const TIMEOUT_MS = 30_000;

// There is no response, or it is not the gateway's.
export class NoResponse extends Error {}

export class ApiError extends Error {
  constructor(status, problem) {
    super(problem.detail ?? problem.title ?? `The gateway answered with the status ${status}.`);
    this.status = status;
    this.code = problem.code ?? null;
  }
}

export function serverNow() {
  return Date.now() + skew;
}

export const channelPath = (name, ...rest) =>
  ["channels", name, ...rest].map(encodeURIComponent).join("/");

// Send a request below /v1 and return the response; raises ApiError unless it succeeds, and NoResponse
// without one. A body is a value, or the text of JSON. `timeoutMs` includes the time of the response's body.
export async function send(path, { method = "GET", headers = {}, body, signal: abort, timeoutMs = TIMEOUT_MS } = {}) {
  const used = token.value;
  const limits = [abort, method === "GET" && timeoutMs && AbortSignal.timeout(timeoutMs)].filter(Boolean);
  const response = await fetch(new URL(`v1/${path}`, document.baseURI), {
    method,
    cache: "no-store",
    signal: AbortSignal.any(limits),
    headers: {
      ...headers,
      ...(used && { Authorization: `Bearer ${used}` }),
      ...(body && { "Content-Type": "application/json" }),
    },
    body: typeof body === "string" ? body : body && JSON.stringify(body),
  }).catch((error) => {
    if (abort?.aborted) throw error;
    throw new NoResponse(
      method === "GET"
        ? "The gateway does not answer."
        : "The gateway does not answer. The change may or may not have been made: look before you try again.",
    );
  });
  const date = Date.parse(response.headers.get("Date") ?? "");
  // The header has whole seconds: on average half a second has passed since. Events are more exact.
  if (Math.abs(date + 500 - serverNow()) > 1000) setServerTime(date + 500);
  if (response.ok || response.status === 304) return response;
  const problem = await response.json().catch(() => ({}));
  // Meanwhile the page may have signed in again or out; the first reason is kept.
  if (response.status === 401 && used === token.value && signInReason.value === null) {
    signOut(`${method === "GET" ? "" : "Nothing was changed. "}${refusal(used)}`);
  }
  throw new ApiError(response.status, problem);
}

// The most by which serverNow() may differ from the gateway's clock.
const CLOCK_ERROR_MS = 2000;

function refusal(used) {
  if (!used) return "This gateway requires a token.";
  const known = account.value;
  if (known?.expires_at && Date.parse(known.expires_at) <= serverNow() + CLOCK_ERROR_MS) {
    return `The token ${known.name} has expired. Sign in with another one.`;
  }
  return "The token is not valid any more: it has expired or was revoked. Sign in again.";
}

export async function getText(path, options = {}) {
  const response = await send(path, options);
  try {
    return await response.text();
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new NoResponse("The gateway's response broke off.");
  }
}

export async function getJson(path, options) {
  const text = await getText(path, options);
  try {
    return JSON.parse(text);
  } catch {
    throw new NoResponse(FOREIGN);
  }
}

// Why a response is not the gateway's.
export const FOREIGN = "The response is not the gateway's. A proxy may ask you to sign in: reload the page.";
