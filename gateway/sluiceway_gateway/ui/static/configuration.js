// The channel's spec, its topic and its conditions.

import { channelPath } from "./api.js";
import { ago, dateTime, isUnknown, Text, Unknown } from "./format.js";
import { Loaded, useResource, useVersion } from "./resource.js";
import { State } from "./states.js";
import { html } from "./view.js";

// Conditions change without a change of the status.
const REFRESH_MS = 5_000;

export function Configuration({ name, status }) {
  const { generation, phase } = status.channel;
  const version = useVersion(REFRESH_MS);
  const resource = useResource(channelPath(name), `${generation}/${phase}/${version}`);
  return html`<${Loaded} resource=${resource} keep>${({ metadata, spec, status: observed }) => {
    const { schema: _, config, ...rest } = spec;
    return html`
      <h2>Conditions</h2>
      <ul class="conditions">${observed.conditions.map((each) => html`<li><${State} kind=${{ True: "good", False: "warning", Unknown: "idle" }[each.status]} word=${each.type} /> ${" "}
        <${Text} class="reason" value=${[each.reason, each.message].filter(Boolean).join(": ")} /> <span class="hint">${ago(each.last_transition_at)}</span></li>`)}</ul>
      <h2>Channel</h2>
      <${Values} values=${{ uid: metadata.uid, generation: metadata.generation, created: dateTime(metadata.created_at), ...flat("topic", observed.topic) }} />
      <h2>Spec</h2>
      <${Values} values=${Object.assign({}, ...Object.entries(rest).map(([key, value]) => flat(key, value)))} />
      <h2>Topic settings</h2>
      ${Object.keys(config).length ? html`<${Values} values=${config} />` : html`<p class="empty">The broker's defaults.</p>`}`;
  }}</>`;
}

function flat(name, value) {
  if (value === null || typeof value !== "object") return { [name]: value };
  return Object.assign({}, ...Object.entries(value).map(([key, each]) => flat(`${name}.${key}`, each)));
}

function Values({ values }) {
  return html`<dl class="values">${Object.entries(values).map(([key, value]) => html`<div key=${key}><dt>${key}</dt><dd>${isUnknown(value) ? html`<${Unknown} why="Not set" />` : html`<${Text} value=${String(value)} />`}</dd></div>`)}</dl>`;
}
