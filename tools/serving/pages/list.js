// A list of any length: only the rows in sight are in the page. Arrow keys, Home, End and the page keys move in it.
const { html, useEffect, useRef, useState } = viewLibrary;

const ROW = 26, SPARE = 8;
let lists = 0;

/** `rows(i)` gives a row {title, text, mark} or null while it is on its way; `need(from, to)` asks for rows in sight. */
export function LongList({ label, count, selected, rows, need, choose, height = 300 }) {
  const box = useRef(null), [id] = useState(() => `list${(lists += 1)}`), [top, setTop] = useState(0);
  const first = Math.max(0, Math.floor(top / ROW) - SPARE);
  const last = Math.min(count, Math.ceil((top + height) / ROW) + SPARE);
  useEffect(() => { if (count) need(first, last); }, [first, last, count, need]);
  useEffect(() => {
    const pane = box.current, at = selected * ROW;
    if (selected < 0) return;
    if (at < pane.scrollTop) pane.scrollTop = at;
    else if (at + ROW > pane.scrollTop + pane.clientHeight) pane.scrollTop = at + ROW - pane.clientHeight;
  }, [selected, count]);
  const page = Math.max(1, Math.floor(height / ROW) - 1);
  const moves = { ArrowUp: -1, ArrowDown: 1, PageUp: -page, PageDown: page, Home: -count, End: count };
  function press(event) {
    if (!(event.key in moves) || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    choose(Math.min(count - 1, Math.max(0, selected + moves[event.key])));
  }
  const shown = [];
  for (let i = first; i < last; i += 1) {
    const row = rows(i);
    shown.push(html`<div key=${i} id=${`${id}-${i}`} role="option" class="row" aria-selected=${String(i === selected)}
      aria-setsize=${count} aria-posinset=${i + 1} title=${row && [row.title, row.text].filter(Boolean).join(": ")} style=${{ top: `${i * ROW}px` }} onClick=${() => choose(i)}>
      <span class="number">${i}</span><b>${row?.title ?? "…"}</b><span class="soft">${row?.text ?? ""}</span>${row?.cost && html`<span class="cost">${row.cost}</span>`}</div>`);
  }
  return html`<div class="list" ref=${box} role="listbox" tabindex="0" aria-label=${label} style=${{ maxHeight: `${height}px` }}
    aria-activedescendant=${selected >= 0 && selected < count ? `${id}-${selected}` : undefined}
    onKeyDown=${press} onScroll=${(event) => setTop(event.currentTarget.scrollTop)}>
    <div class="track" style=${{ height: `${count * ROW}px` }}>${shown}</div></div>`;
}
