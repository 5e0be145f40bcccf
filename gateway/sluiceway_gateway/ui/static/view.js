// The view library in one place: htm's templates on Preact, hooks and signals.

import { h, render } from "preact";
import htm from "htm";

export { render };
export { useEffect, useErrorBoundary, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
export { batch, computed, effect, signal, untracked } from "@preact/signals";

// Values in templates are text: Preact creates text nodes, and never parses them as HTML.
export const html = htm.bind(h);
