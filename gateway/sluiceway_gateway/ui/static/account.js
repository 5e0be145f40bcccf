// The token in use: name, permissions and expiry.

import { getJson, serverNow } from "./api.js";
import { Text } from "./format.js";
import { mode, tick } from "./live.js";
import { account, signInReason, token } from "./token.js";
import { effect, html } from "./view.js";

const WARNED_S = 600;

// The token that `account` is of; undefined before the first.
let known;
let expiry = null;

// Read once there is a connection, so that the first rows do not wait for it.
effect(() => {
  const used = token.value;
  const connected = mode.value === "live" || mode.value === "polling";
  if (signInReason.value !== null) {
    known = undefined;
    clearTimeout(expiry);
  } else if (connected && used !== known) read(used);
});

async function read(used) {
  try {
    const found = await getJson("token");
    if (token.value !== used) return;
    known = used;
    account.value = found;
    if (found.expires_at) checkAt(Date.parse(found.expires_at));
  } catch {
    // Signed out, or read again with the next connection.
  }
}

const MAX_TIMEOUT_MS = 2 ** 31 - 1;
const ASK_AGAIN_MS = 1_000;

// A paused page has no stream that would end. Once the time is up, ask until the gateway refuses the token: its
// clock may be behind.
function checkAt(ms) {
  const used = token.value;
  const left = ms - serverNow();
  clearTimeout(expiry);
  expiry = setTimeout(async () => {
    if (left <= 0) await getJson("token").catch(() => {});
    if (used === token.value && signInReason.value === null) checkAt(ms);
  }, left > 0 ? Math.min(left, MAX_TIMEOUT_MS) : ASK_AGAIN_MS);
}

const GIVES = {
  read: ["view", "read"],
  write: ["view", "write"],
  manage: ["view", "read", "write", "manage"],
  admin: ["view", "read", "write", "manage", "admin"],
};

// Whether the token permits "view", "read", "write" or "manage" on a channel. The gateway decides.
export function may(action, channel) {
  return (account.value?.scopes ?? []).some((scope) => {
    const [kind, prefix = ""] = scope.split(":", 2);
    return (GIVES[kind] ?? []).includes(action) && channel.startsWith(prefix);
  });
}

// Whether the token permits channels of any name to be created.
export const mayCreate = () => (account.value?.scopes ?? []).some((scope) => ["manage", "admin"].includes(scope.split(":", 1)[0]));

export function Account() {
  const known = account.value;
  return known?.name && html`<span class="account" title=${`Token ${known.name}: ${known.scopes.join(", ")}`}><${Text} value=${known.name} /></span>`;
}

// The text changes once a minute, because screen readers read each change.
export function Expiry() {
  tick.value;
  const end = account.value?.expires_at;
  const left = end ? (Date.parse(end) - serverNow()) / 1000 : Infinity;
  if (left > WARNED_S) return null;
  const minutes = Math.ceil(left / 60);
  const time = minutes > 1 ? `${minutes} minutes` : "less than a minute";
  return html`<p class="expiring" role="status">The token <${Text} value=${account.value.name} /> expires in ${time}. Then the page asks for another one.</p>`;
}
