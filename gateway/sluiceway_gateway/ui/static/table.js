// A sortable table of thousands of rows, of which only those in view are in the document.

import { html, useEffect, useLayoutEffect, useRef, useState } from "./view.js";

const ROW_PX = 36;
const MARGIN_ROWS = 8;

// `columns` have `id`, `title`, `cell(row, active)` and may have `hint`, `numeric`, `header`, and
// `optional`: from 1 on, the first to be left out on narrow screens have the highest number.
// One row is a tab stop; the arrow keys, Home, End and Page keys move to others. `left` is an object in which
// the table notes its place, and from which the next one continues.
export function VirtualTable({ label, columns, rows, keyOf, sort, descending, onSort, left }) {
  const scroller = useRef(null);
  const [view, setView] = useState({ first: firstAt(left.scrollTop ?? 0), count: 60 });
  const [active, setActive] = useState(() => Math.max(0, rows.findIndex((row) => keyOf(row) === left.key)));
  const focusWanted = useRef(left.key !== undefined && active >= view.first && active < view.first + view.count);
  // Rows that are not rendered again would keep an older object.
  const notes = useRef(left);
  notes.current = left;
  // The rows in the document by key. A row that is the same is not rendered again.
  const rendered = useRef(new Map());
  const current = Math.min(active, Math.max(0, rows.length - 1));

  function measure() {
    if (!scroller.current) return;
    const { scrollTop, clientHeight } = scroller.current;
    notes.current.scrollTop = scrollTop;
    const first = firstAt(scrollTop);
    const count = Math.ceil(clientHeight / ROW_PX) + 2 * MARGIN_ROWS;
    setView((old) => (old.first === first && old.count === count ? old : { first, count }));
  }

  useLayoutEffect(() => {
    scroller.current.scrollTop = left.scrollTop ?? 0;
    measure();
  }, []);

  useEffect(() => {
    const observer = new ResizeObserver(measure);
    observer.observe(scroller.current);
    return () => observer.disconnect();
  }, []);

  useLayoutEffect(() => {
    if (!focusWanted.current) return;
    focusWanted.current = false;
    scroller.current.querySelector('a[data-row-link][tabindex="0"]')?.focus();
  });

  function focused(index, key) {
    notes.current.key = key;
    setActive(index);
  }

  function onKeyDown(event) {
    if (!event.target.matches("[data-row-link]") || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(scroller.current.clientHeight / ROW_PX) - 2);
    const moves = { ArrowDown: current + 1, ArrowUp: current - 1, PageDown: current + page, PageUp: current - page, Home: 0, End: rows.length - 1 };
    const target = moves[event.key];
    if (target === undefined) return;
    event.preventDefault();
    const next = Math.min(rows.length - 1, Math.max(0, target));
    const { scrollTop, clientHeight } = scroller.current;
    const top = next * ROW_PX;
    if (top < scrollTop) scroller.current.scrollTop = top;
    else if (top + 2 * ROW_PX > scrollTop + clientHeight) scroller.current.scrollTop = top + 2 * ROW_PX - clientHeight;
    focusWanted.current = true;
    setActive(next);
    measure();
  }

  const last = Math.min(rows.length, view.first + view.count);
  const shown = rows.slice(Math.min(view.first, rows.length), last);
  // The active row is a tab stop, and in the document wherever the view is.
  const tabStop = current >= view.first && current < last ? current : Math.min(view.first + MARGIN_ROWS, last - 1);
  const following = new Map();
  const rowsInView = shown.map((row, offset) => {
    const index = view.first + offset;
    const isActive = index === tabStop;
    const key = keyOf(row);
    let found = rendered.current.get(key);
    if (found?.row !== row || found.index !== index || found.isActive !== isActive || found.columns !== columns) {
      const node = html`<${Row} key=${key} row=${row} columns=${columns} index=${index} active=${isActive} onFocus=${() => focused(index, key)} />`;
      found = { row, index, isActive, columns, node };
    }
    following.set(key, found);
    return found.node;
  });
  rendered.current = following;
  return html`<div class="scroller" ref=${scroller} onScroll=${measure} onKeyDown=${onKeyDown}>
    <table aria-label=${label} aria-rowcount=${rows.length + 1}>
      <thead>
        <tr aria-rowindex="1">
          ${columns.map((each) => {
            const direction = each.id === sort ? (descending ? "descending" : "ascending") : undefined;
            return html`<th scope="col" key=${each.id} class=${classOf(each)} aria-sort=${direction} title=${each.hint}>
              <button onClick=${() => onSort(each.id)}>${each.title}<span class="arrow" aria-hidden="true">${direction ? (descending ? "▼" : "▲") : ""}</span></button>
            </th>`;
          })}
        </tr>
      </thead>
      <tbody>
        ${view.first > 0 && html`<tr key="above" aria-hidden="true" class="spacer"><td style=${{ height: `${Math.min(view.first, rows.length) * ROW_PX}px` }}></td></tr>`}
        ${rowsInView}
        ${last < rows.length && html`<tr key="below" aria-hidden="true" class="spacer"><td style=${{ height: `${(rows.length - last) * ROW_PX}px` }}></td></tr>`}
      </tbody>
    </table>
    ${rows.length === 0 && html`<p class="empty">Nothing matches the filter.</p>`}
  </div>`;
}

// The first row in the document. In steps, so that most scroll events change nothing.
function firstAt(scrollTop) {
  const first = Math.max(0, Math.floor(scrollTop / ROW_PX) - MARGIN_ROWS);
  return first - (first % 4);
}

const classes = new WeakMap();

function classOf(column) {
  let found = classes.get(column);
  if (found === undefined) {
    const names = [column.numeric && "numeric", column.optional && `optional-${column.optional}`, `column-${column.id}`];
    found = names.filter(Boolean).join(" ");
    classes.set(column, found);
  }
  return found;
}

function Row({ row, columns, index, active, onFocus }) {
  return html`<tr aria-rowindex=${index + 2} onFocusIn=${onFocus}>
    ${columns.map((each) =>
      each.header
        ? html`<th scope="row" key=${each.id} class=${classOf(each)}>${each.cell(row, active)}</th>`
        : html`<td key=${each.id} class=${classOf(each)}>${each.cell(row, active)}</td>`,
    )}
  </tr>`;
}
