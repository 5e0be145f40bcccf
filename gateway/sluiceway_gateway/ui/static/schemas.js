// Versions of the schema, each with its difference from the one before.

import { channelPath, getJson } from "./api.js";
import { dateTime, Text } from "./format.js";
import { Loaded, useResource } from "./resource.js";
import { href, route } from "./router.js";
import { html, useMemo } from "./view.js";

export function Schemas({ name, status }) {
  const read = async (path, options) => {
    const [{ items }, channel] = await Promise.all([getJson(path, options), getJson(channelPath(name), options)]);
    return { items, current: channel.status.schema.version };
  };
  const resource = useResource(channelPath(name, "schemas"), status.channel.generation, read);
  return html`<${Loaded} resource=${resource}>${({ items, current }) => html`<${Versions} name=${name} items=${items} current=${current} />`}</>`;
}

// `current` is the version that writers use: not the last one, if a channel went back to an older one.
function Versions({ name, items, current }) {
  const wanted = route.value.query.version;
  const found = items.find((each) => String(each.version) === wanted);
  const shown = found ?? items.find((each) => each.version === current);
  const before = items[items.indexOf(shown) - 1];
  const lines = useMemo(() => difference(before ? text(before) : text(shown), text(shown)), [before, shown]);
  return html`<nav class="versions" aria-label="Versions">${items.toReversed().map((each) => html`<a key=${each.version} href=${href(["channels", name], { tab: "schema", version: each.version })} aria-current=${each === shown ? "true" : undefined}>Version ${each.version}${each.version === current && ", in use"}<small>${dateTime(each.created_at)}, id ${each.id}</small></a>`)}</nav>
    ${wanted && !found && html`<p class="notice" role="alert">The channel has no version <${Text} value=${wanted} />. Below is the one in use.</p>`}
    <h2>Version ${shown.version}${before ? `, compared with ${before.version}` : ""}</h2>
    <pre class="diff" tabindex="0">${lines.map(({ sign, line }) => html`<span class=${{ "+": "added", "-": "removed" }[sign]}>${`${sign} ${line}\n`}</span>`)}</pre>`;
}

const text = ({ definition }) => JSON.stringify(definition, null, 2).split("\n");

const MAX_CELLS = 4_000_000;

// The lines of both texts, with "-" and "+" where they differ, by the longest common subsequence.
export function difference(old, now) {
  let start = 0;
  while (start < old.length && start < now.length && old[start] === now[start]) start += 1;
  let oldEnd = old.length;
  let nowEnd = now.length;
  while (oldEnd > start && nowEnd > start && old[oldEnd - 1] === now[nowEnd - 1]) {
    oldEnd -= 1;
    nowEnd -= 1;
  }
  const equal = (line) => ({ sign: " ", line });
  return [
    ...now.slice(0, start).map(equal),
    ...changed(old.slice(start, oldEnd), now.slice(start, nowEnd)),
    ...now.slice(nowEnd).map(equal),
  ];
}

function changed(old, now) {
  const removed = (line) => ({ sign: "-", line });
  const added = (line) => ({ sign: "+", line });
  if (old.length * now.length > MAX_CELLS) return [...old.map(removed), ...now.map(added)];
  const width = now.length + 1;
  const common = new Uint32Array((old.length + 1) * width);
  for (let i = old.length - 1; i >= 0; i -= 1) {
    for (let j = now.length - 1; j >= 0; j -= 1) {
      common[i * width + j] =
        old[i] === now[j]
          ? common[(i + 1) * width + j + 1] + 1
          : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
    }
  }
  const lines = [];
  let [i, j] = [0, 0];
  while (i < old.length && j < now.length) {
    if (old[i] === now[j]) {
      lines.push({ sign: " ", line: now[j] });
      i += 1;
      j += 1;
    } else if (common[(i + 1) * width + j] >= common[i * width + j + 1]) lines.push(removed(old[i++]));
    else lines.push(added(now[j++]));
  }
  return [...lines, ...old.slice(i).map(removed), ...now.slice(j).map(added)];
}
