// Requests to the public HTTP interface, with the token of this tab.

import { signal } from "./view.js";

const KEY = "sluiceway.token";

// Of the tab's session: closing the tab forgets it.
export const token = signal(sessionStorage.getItem(KEY));
// Why the sign-in form is shown; null while it is not.
export const signInReason = signal(null);

// By the server's clock minus this machine's, in ms, from events and the header Date of answers.
let skew = 0;

export function setServerTime(ms) {
  skew = ms - Date.now();
}

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

export function signIn(given) {
  sessionStorage.setItem(KEY, given);
  token.value = given;
  signInReason.value = null;
}

export function signOut(reason) {
  sessionStorage.removeItem(KEY);
  token.value = null;
  signInReason.value = reason;
}

export const channelPath = (name, ...rest) =>
  ["channels", name, ...rest].map(encodeURIComponent).join("/");

// Send a request below /v1 and return the response; raises ApiError unless it succeeds. A body is a
// value, or the text of JSON.
export async function send(path, { method = "GET", headers = {}, body, signal: abort } = {}) {
  const used = token.value;
  const response = await fetch(new URL(`v1/${path}`, document.baseURI), {
    method,
    cache: "no-store",
    signal: abort,
    headers: {
      ...headers,
      ...(used && { Authorization: `Bearer ${used}` }),
      ...(body && { "Content-Type": "application/json" }),
    },
    body: typeof body === "string" ? body : body && JSON.stringify(body),
  });
  const date = Date.parse(response.headers.get("Date") ?? "");
  // The header has whole seconds: on average half a second has passed since.
  if (!Number.isNaN(date)) setServerTime(date + 500);
  if (response.ok || response.status === 304) return response;
  const problem = await response.json().catch(() => ({}));
  // Another tab of the page may have signed in anew in the meantime.
  if (response.status === 401 && used === token.value) {
    signOut(
      used
        ? "The token is not valid any more: it has expired or was revoked. Sign in again."
        : "This gateway requires a token.",
    );
  }
  throw new ApiError(response.status, problem);
}

export async function getJson(path, options) {
  return (await send(path, options)).json();
}
