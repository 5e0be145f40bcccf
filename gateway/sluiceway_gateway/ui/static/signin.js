// The sign-in form: a token of this gateway, kept for the tab's session.

import { ApiError, getJson } from "./api.js";
import { signIn, signInReason, signOut } from "./token.js";
import { html, useEffect, useRef, useState } from "./view.js";

export function SignIn() {
  const input = useRef(null);
  const [busy, setBusy] = useState(false);
  useEffect(() => input.current.focus(), []);

  async function submit(event) {
    event.preventDefault();
    const given = input.current.value.trim().replace(/^Bearer\s+/i, "");
    if (!given) return;
    // Browsers refuse to send others, which would look like a gateway that does not answer.
    if (!/^[\x21-\x7e]+$/.test(given)) {
      signOut("This is not a token: tokens have no spaces and no special characters. Copy it again.");
      return;
    }
    setBusy(true);
    signIn(given);
    try {
      await getJson("token");
    } catch (error) {
      const refused = error instanceof ApiError && error.status === 401;
      signOut(refused ? "The gateway does not accept this token. Check it, or use another one." : error.message);
    }
    setBusy(false);
  }

  return html`<main class="signin">
    <form onSubmit=${submit}>
      <h1>Sign in to Sluiceway</h1>
      <p role="alert">${signInReason.value}</p>
      <label for="token">Token</label>
      <input id="token" type="password" autocomplete="off" spellcheck="false" ref=${input} />
      <button class="primary" disabled=${busy}>Sign in</button>
      <p class="hint">
        It stays in this tab until you close it. <code>sluiceway token create</code> makes tokens.
      </p>
    </form>
  </main>`;
}
