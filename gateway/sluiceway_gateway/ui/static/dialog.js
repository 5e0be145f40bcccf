// The dialog of an action: it says what will happen, asks for what it needs, and ends with its view.

import { route } from "./router.js";
import { signInReason } from "./token.js";
import { effect, html, signal, useEffect, useRef, useState } from "./view.js";

// How many actions of this page have succeeded.
export const acted = signal(0);

// The open dialog: { title, text, confirm, fields, run }; null while there is none.
const dialog = signal(null);

// A dialog ends with its token, and with its view: over another channel it would be taken for one of that.
effect(() => {
  if (signInReason.value !== null) dialog.value = null;
});
effect(() => {
  route.value;
  dialog.value = null;
});

export function ask(spec) {
  dialog.value = spec;
}

export function Dialog() {
  return dialog.value && html`<${OpenDialog} spec=${dialog.value} />`;
}

function OpenDialog({ spec }) {
  const element = useRef(null);
  const [values, setValues] = useState(() =>
    Object.fromEntries((spec.fields ?? []).map(({ id, options, value }) => [id, value ?? (options ? Object.keys(options)[0] : "")])),
  );
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  useEffect(() => element.current.showModal(), []);

  async function confirm(event) {
    event.preventDefault();
    setBusy(true);
    try {
      await spec.run(values);
      acted.value += 1;
      // The view may have gone meanwhile, and the dialog with it.
      element.current?.close();
    } catch (failure) {
      setError(failure.message);
      setBusy(false);
    }
  }

  return html`<dialog ref=${element} aria-labelledby="dialog-title" onClose=${() => (dialog.value = null)}>
    <form onSubmit=${confirm}>
      <h2 id="dialog-title">${spec.title}</h2>
      <p>${spec.text}</p>
      ${(spec.fields ?? []).filter(({ shown }) => !shown || shown(values)).map((each) => html`<${Field} key=${each.id} field=${each} value=${values[each.id]} onChange=${(value) => setValues({ ...values, [each.id]: value })} />`)}
      ${spec.preview?.(values)}
      ${error && html`<p class="notice" role="alert">${error}</p>`}
      <div class="buttons">
        <button type="button" onClick=${() => element.current.close()}>Cancel</button>
        <button class="primary" disabled=${busy}>${spec.confirm}</button>
      </div>
    </form>
  </dialog>`;
}

function Field({ field: { id, label, type = "text", required, options, min = 0, max }, value, onChange }) {
  if (type === "checkbox") {
    return html`<label class="check"><input type="checkbox" checked=${Boolean(value)} onChange=${(event) => onChange(event.target.checked)} /> ${label}</label>`;
  }
  const control = options
    ? html`<select id=${`field-${id}`} value=${value} onChange=${(event) => onChange(event.target.value)}>${Object.entries(options).map(([key, text]) => html`<option value=${key}>${text}</option>`)}</select>`
    : type === "textarea"
      ? html`<textarea id=${`field-${id}`} rows="12" spellcheck="false" required=${required} onInput=${(event) => onChange(event.target.value)} value=${value}></textarea>`
      : html`<input id=${`field-${id}`} type=${type} min=${type === "number" ? min : undefined} max=${max} value=${value} required=${required} maxlength="1000" autocomplete="off" onInput=${(event) => onChange(event.target.value)} />`;
  return html`<div class="field"><label for=${`field-${id}`}>${label}</label>${control}</div>`;
}
