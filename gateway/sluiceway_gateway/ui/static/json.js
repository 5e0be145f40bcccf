// JSON without loss: numbers that JavaScript would round keep their text, and invisible characters are
// shown as escapes.

// A name that no response contains.
const MARK = `number ${crypto.getRandomValues(new Uint32Array(4)).join(" ")}`;
const TOKENS = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d[\d.eE+-]*/g;

// A number by its text.
export class ExactNumber {
  constructor(text) {
    this.text = text;
  }

  toString() {
    return this.text;
  }
}

// Parse JSON; numbers whose text JavaScript would change become an ExactNumber.
export function parseExact(text) {
  const marked = text.replace(TOKENS, (token) =>
    token[0] === '"' || String(Number(token)) === token ? token : `{"${MARK}":"${token}"}`,
  );
  return JSON.parse(marked, (_, value) => (value?.[MARK] === undefined ? value : new ExactNumber(value[MARK])));
}

// The JSON text of a value, in lines with `indent` spaces, or in one line.
export function jsonText(value, indent = 0) {
  return written(value, indent, "");
}

function written(value, indent, margin) {
  if (value instanceof ExactNumber) return value.text;
  if (typeof value === "string") return visible(JSON.stringify(value));
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const inner = margin + " ".repeat(indent);
  const parts = Array.isArray(value)
    ? value.map((each) => written(each, indent, inner))
    : Object.entries(value).map(([name, each]) => `${visible(JSON.stringify(name))}: ${written(each, indent, inner)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  if (!parts.length) return open + close;
  return indent ? `${open}\n${inner}${parts.join(`,\n${inner}`)}\n${margin}${close}` : `${open}${parts.join(", ")}${close}`;
}

// Characters without a shape of their own, which hide or reorder others; as JSON escapes them.
const INVISIBLE = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\uffff]/g;

export const visible = (text) =>
  text.replace(INVISIBLE, (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`);

// An example of a record of an Avro schema; fields with a default other than null are left out.
export function exampleRecord(definition) {
  const named = {};
  const EXAMPLES = { null: null, boolean: false, string: "", bytes: "", int: 0, long: 0, float: 0, double: 0 };
  const LOGICAL = {
    date: "2026-01-31",
    "time-millis": "12:00:00",
    "time-micros": "12:00:00",
    decimal: "0",
    uuid: "00000000-0000-0000-0000-000000000000",
  };
  function example(type) {
    if (Array.isArray(type)) return type.includes("null") ? null : example(type[0]);
    if (typeof type === "string") return type in EXAMPLES ? EXAMPLES[type] : example(named[type]);
    if (type.name) named[type.name] = type;
    const logical = type.logicalType ?? "";
    if (logical in LOGICAL) return LOGICAL[logical];
    if (logical.startsWith("timestamp")) return "2026-01-31T12:00:00Z";
    if (logical.startsWith("local-timestamp")) return "2026-01-31T12:00:00";
    if (type.type === "array") return [];
    if (type.type === "map") return {};
    if (type.type === "enum") return type.symbols[0];
    if (type.type === "fixed") return btoa("\0".repeat(type.size));
    if (type.type !== "record") return example(type.type);
    const fields = type.fields.filter((each) => each.default === undefined || each.default === null);
    return Object.fromEntries(fields.map((each) => [each.name, each.default === null ? null : example(each.type)]));
  }
  return example(definition);
}
