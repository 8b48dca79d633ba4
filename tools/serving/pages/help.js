// The keys of the page and of the notebook's widget.
const { html, useEffect, useRef } = viewLibrary;

const HELP = [["s or o", "step over: the next node, with all of its graph"], ["r", "round: until this node comes again"], ["i / u", "into a graph, and out"], ["b", "back"], ["f", "fork from the moment that is shown"], ["k / d", "keep a what-if in memory, or drop it"], ["e", "finish"], ["n", "new run"],
  ["← →", "the moment before, the next"], ["↑ ↓", "move in a list"], ["Tab", "to the next part; in the picture arrow keys go from box to box, Enter runs to it"], ["?", "this list"]];
const DRAWING = [["Ctrl S", "save the drawing"], ["Delete", "take the chosen box or arrow out of the drawing"], ["Ctrl Z, Y", "undo a change of the drawing, the mouse's too, and do it again"]];

export function Help({ close, inside = false, children = null }) {
  const box = useRef(null);
  useEffect(() => { box.current.showModal(); }, []);
  return html`<dialog ref=${box} class="help" aria-label="keys" onClose=${close}><h2>Keys</h2>${inside && html`<p class="soft">They work while the focus is in here.</p>`}
    <dl>${[...HELP, ...(inside ? [] : DRAWING)].map(([key, text]) => html`<dt><kbd>${key}</kbd></dt><dd>${text}</dd>`)}</dl>${children}
    <form method="dialog"><button class="main">Close</button></form></dialog>`;
}
