// The dashboard's shell: header, connection, and the view that the URL names.

import { Account, Expiry } from "./account.js";
import { clockTime, durationText } from "./format.js";
import { failure, mode, paused, receivedAt, tick } from "./live.js";
import { Overview } from "./overview.js";
import { lazy, NotLoaded } from "./resource.js";
import { href, route } from "./router.js";
import { SignIn } from "./signin.js";
import { signInReason, signOut, token } from "./token.js";
import { html, render, useEffect, useErrorBoundary } from "./view.js";

const [channelPage, loadChannelPage, channelPageFailed] = lazy(() => import("./channel.js"));

function App() {
  if (signInReason.value !== null) return html`<${SignIn} />`;
  const [kind, name] = route.value.path;
  const shown = kind === "channels" && name;
  return html`<${Header} channel=${shown ? name : null} />
    <${Offline} />
    <${Expiry} />
    <${Guarded} key=${shown ? name : ""}>${shown ? html`<${ChannelLoader} name=${name} />` : html`<${Overview} />`}</>`;
}

// Without it, a view that fails would stay as it was, below "Live".
function Guarded({ children }) {
  const [error] = useErrorBoundary((failure) => console.warn(failure));
  if (!error) return children;
  return html`<main><p class="notice" role="alert">The page cannot show this. The gateway may have another version now.
    <button onClick=${() => location.reload()}>Reload the page</button> <span class="hint">${String(error)}</span></p></main>`;
}

function ChannelLoader({ name }) {
  useEffect(loadChannelPage, []);
  if (!channelPage.value) return html`<main><${NotLoaded} failed=${channelPageFailed} text="Reading the channel" /></main>`;
  return html`<${channelPage.value.ChannelPage} name=${name} />`;
}

function Header({ channel }) {
  return html`<header>
    <a class="skip" href="#" onClick=${skip}>Skip to the content</a>
    <nav aria-label="Views">
      <a class="brand" href=${href([])}><img src="ui/icon.svg" alt="" width="22" height="22" /> Sluiceway</a>
      ${channel && html`<span aria-hidden="true">›</span> <bdi class="text here" title=${channel}>${channel}</bdi>`}
    </nav>
    <${Freshness} />
    <button aria-pressed=${paused.value} onClick=${() => (paused.value = !paused.value)}>
      ${paused.value ? "Resume" : "Pause"}
    </button>
    <${Account} />
    ${token.value && html`<button onClick=${() => signOut("You have signed out.")}>Sign out</button>`}
  </header>`;
}

function skip(event) {
  event.preventDefault();
  const main = document.querySelector("main");
  main.tabIndex = -1;
  main.focus();
}

function Freshness() {
  tick.value;
  const seconds = receivedAt.value === null ? null : Math.max(0, (performance.now() - receivedAt.value) / 1000);
  const words = { connecting: "Connecting", live: "Live", polling: "Polling", offline: "No connection" };
  const word = paused.value ? "Paused" : words[mode.value];
  const title = mode.value === "polling" && !paused.value ? "The page asks every 2 s: the event stream does not reach it." : undefined;
  return html`<span class=${`freshness ${paused.value ? "paused" : mode.value}`} title=${title}>
    <span class="shape" aria-hidden="true">${paused.value ? "❚❚" : mode.value === "offline" ? "■" : "●"}</span>
    <b>${word}</b>${seconds !== null && html`<span class="updated"> · updated ${durationText(seconds)} ago</span>`}
  </span>`;
}

function Offline() {
  const since = receivedAt.value;
  if (mode.value !== "offline" || (paused.value && since !== null)) return null;
  return html`<p class="offline" role="alert">
    <b>No connection to the gateway.</b> ${failure.value ?? "The gateway does not answer."}
    ${since !== null && ` What you see is from ${clockTime(Date.now() - (performance.now() - since))}.`} Trying again.
  </p>`;
}

// The key / leads to the view's filter or search, unless something is being typed.
addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (event.target.closest("input, textarea, select, [contenteditable], dialog")) return;
  const filter = document.querySelector("main input[type=search]");
  if (!filter) return;
  event.preventDefault();
  filter.focus();
  filter.select();
});

const place = document.getElementById("app");
place.replaceChildren();
render(html`<${App} />`, place);
