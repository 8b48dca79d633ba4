// The picture of a graph: boxes by dagre, the current nodes lit, the passes on the arrows. One tab stop; arrow keys go from box to box.
const { html, useEffect, useMemo, useRef, useState, Graph, layout } = viewLibrary;

const context = document.createElement("canvas").getContext("2d");
let pictures = 0;

function widthOf(text, font) {
  context.font = font;
  return context.measureText(text).width;
}

const FONT = "12px system-ui, sans-serif", BOLD = `600 ${FONT}`, SMALL = "10px system-ui, sans-serif";

const READABLE = 0.75;  // names of 9 pixels: a picture that fits only if smaller is scrolled, with the present node in sight, but for a wide one that is edited, down to LEAST
const LEAST = 0.65, LEGIBLE = 0.33;  // a smaller picture is laid out from the top down: below the first where its room is higher than wide

function arrange({ nodes, edges }, direction) {
  const drawn = new Graph({ multigraph: true });
  drawn.setGraph({ rankdir: direction === "TD" ? "TB" : direction, nodesep: 26, ranksep: 30, edgesep: 14, marginx: 8, marginy: 8 });
  drawn.setDefaultEdgeLabel(() => ({}));
  for (const node of nodes) {
    const lines = node.settings ?? [], end = node.name === "START" || node.name === "END";
    const width = Math.max(widthOf(node.name, BOLD), ...lines.map((line) => widthOf(line, SMALL))) + (end ? 8 : 22);
    drawn.setNode(node.name, { width, height: end ? 20 : 28 + 12 * lines.length, node, end });
  }
  edges.forEach((edge, i) => {
    const width = widthOf(`${edge.label} 000×`, SMALL) + 8;
    drawn.setEdge(edge.source, edge.target, { width: edge.label ? width : 26, height: 14, labelpos: "c", edge }, String(i));
  });
  layout(drawn);
  return {
    ...drawn.graph(),
    boxes: drawn.nodes().map((name) => drawn.node(name)),
    arrows: drawn.edges().map((e) => drawn.edge(e)),
  };
}

/** A smooth line through points: straight to the middle of each leg, bent at the points between. */
function curve(points) {
  const [first, ...rest] = points;
  let path = `M${first.x} ${first.y}`;
  rest.forEach((point, i) => {
    const next = rest[i + 1];
    path += next ? ` Q${point.x} ${point.y} ${(point.x + next.x) / 2} ${(point.y + next.y) / 2}` : ` L${point.x} ${point.y}`;
  });
  return path;
}

/** `passes`: [source, target, count]; `lit`: names; `breaks`: [name, "before" or "after"]; `pick(name)` is called for a box that is chosen.
 * `edit`: what the mouse may do, `arrow(from, to)` for a box that is dragged onto another, `move(name, edge)` onto an arrow,
 * `choose(edge)` for an arrow that is clicked, `cut(edge)` for one clicked twice; `chosen(edge)` is true of the chosen one. */
export function GraphPicture({ graph, lit = [], passes = null, pick = null, stale = false, breaks = [], edit = null }) {
  const pane = useRef(null), [width, setWidth] = useState(0);
  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width / 20) * 20));
    watch.observe(pane.current);
    return () => watch.disconnect();
  }, []);
  const own = useMemo(() => arrange(graph, graph.direction ?? "LR"), [graph]);
  const isDown = ["TB", "TD", "BT"].includes(graph.direction);
  const narrow = width > 0 && (width < 0.75 * innerHeight ? LEAST : LEGIBLE) * own.width > width && !isDown;
  const placed = useMemo(() => (narrow ? arrange(graph, "TB") : own), [own, narrow]), [id] = useState(() => `arrow${(pictures += 1)}`);
  const [zoom, setZoom] = useState(null), room = pane.current ? parseFloat(getComputedStyle(pane.current).maxHeight) : 0;
  const whole = Math.min(1, width / placed.width || 1, Math.max(LEGIBLE, room / placed.height || 1)), scale = zoom === "fit" ? whole : zoom ?? (edit && !isDown && whole >= LEAST ? whole : Math.max(READABLE, whole));
  const enlarge = (times) => setZoom(Math.min(4, Math.max(0.2, scale * times)));
  useEffect(() => {  // the present node stays in sight of a picture that is scrolled
    const box = pane.current.querySelector(".box.lit, .end.lit")?.getBoundingClientRect(), all = pane.current.getBoundingClientRect();
    if (box && (box.top < all.top || box.bottom > all.bottom)) pane.current.scrollTop += box.top - all.top - all.height / 2;
    if (box && (box.left < all.left || box.right > all.right)) pane.current.scrollLeft += box.left - all.left - all.width / 2;
  }, [lit.join(), placed, scale, width]);
  useEffect(() => {
    const turn = (event) => { if (event.ctrlKey) { event.preventDefault(); enlarge(event.deltaY < 0 ? 1.15 : 1 / 1.15); } };
    pane.current.addEventListener("wheel", turn, { passive: false });
    return () => pane.current?.removeEventListener("wheel", turn);
  });
  const [at, setAt] = useState(0), boxes = useRef([]);
  const counts = new Map((passes ?? []).map(([source, target, count]) => [`${source}\n${target}`, count]));
  const [drag, setDrag] = useState(null), image = useRef(null);
  const place = (event) => new DOMPoint(event.clientX, event.clientY).matrixTransform(image.current.getScreenCTM().inverse());
  // A press takes the focus from fields of the page: the keys that follow are for what was pressed.
  const focus = (event) => { event.preventDefault(); (event.currentTarget.closest(".box") ?? pane.current).focus({ preventScroll: true }); };
  const grab = (name) => (edit ? (event) => { const { x, y } = place(event); focus(event); setDrag({ name, x, y, toX: x, toY: y }); } : null);
  function drop(event) {
    const to = document.elementsFromPoint(event.clientX, event.clientY).map((one) => one.closest?.("[data-box], [data-edge]")).find(Boolean)?.dataset;
    if (to?.box && to.box !== drag.name) edit.arrow(drag.name, to.box);
    const edge = placed.arrows[to?.edge]?.edge;
    if (edge && edge.source !== drag.name && edge.target !== drag.name && drag.name !== "START") edit.move(drag.name, edge);
    setDrag(null);
  }
  const moving = drag && { onPointerMove: (event) => { const { x, y } = place(event); setDrag({ ...drag, toX: x, toY: y }); }, onPointerUp: drop, onPointerLeave: () => setDrag(null) };
  const order = placed.boxes.filter((box) => !box.end);
  function go(event, i) {
    const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (move) {
      event.preventDefault();
      event.stopPropagation();
      const next = (i + move + order.length) % order.length;
      setAt(next);
      boxes.current[next]?.focus();
      if (edit) pick(order[next].node.name);
    }
    if (pick && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      pick(order[i].node.name);
    }
  }
  const arrows = placed.arrows.map(({ edge, points, x, y }, i) => {
    const count = counts.get(`${edge.source}\n${edge.target}`) ?? 0;
    const seen = count > 0, text = [edge.label, seen ? `${count}×` : ""].filter(Boolean).join(" ");
    const width = widthOf(text, SMALL) + 8;
    return html`<g key=${i} class=${`arrow${seen ? " seen" : ""}${edit?.chosen(edge) ? " lit" : ""}`} data-edge=${i} data-from=${edge.source} data-to=${edge.target} onPointerDown=${edit && focus} onClick=${() => edit?.choose(edge)} onDblClick=${() => edit?.cut(edge)}>
      ${edit && html`<path class="hold" d=${curve(points)}/>`}
      <title>${`${edge.source} to ${edge.target}${edge.label ? `, ${edge.label}` : ""}${passes ? `: passed ${count} times` : ""}`}</title>
      <path d=${curve(points)} marker-end=${`url(#${id}${seen ? "s" : ""})`} stroke-dasharray=${edge.dotted ? "4 3" : null}
        stroke-width=${seen ? 1.2 + Math.min(2, Math.log10(count + 1)) : 1}/>
      ${text && html`<rect x=${x - width / 2} y=${y - 7} width=${width} height="14" rx="4"/>
      <text x=${x} y=${y + 3.5} text-anchor="middle">${edge.label}${edge.label && seen ? " " : ""}${seen && html`<tspan class="count">${count}×</tspan>`}</text>`}
    </g>`;
  });
  const drawn = placed.boxes.map(({ node, x, y, width, height, end }) => {
    const i = order.findIndex((box) => box.node === node), on = lit.includes(node.name), lines = node.settings ?? [];
    if (end) return html`<text key=${node.name} data-box=${node.name} onPointerDown=${grab(node.name)} onClick=${() => edit && pick?.(node.name)} class=${`end${on ? " lit" : ""}`} x=${x} y=${y + 4} text-anchor="middle">${node.name.toLowerCase()}</text>`;
    const about = [`${node.name}${node.about ? `: ${node.about}` : ""}`, ...lines, on ? "the current node" : ""].filter(Boolean).join(", ");
    return html`<g key=${node.name} ref=${(element) => { boxes.current[i] = element; }} class=${`box ${node.role ?? "compute"}${on ? " lit" : ""}`} data-box=${node.name} onPointerDown=${grab(node.name)}
      role=${pick ? "button" : "img"} tabindex=${i === Math.min(at, order.length - 1) ? 0 : -1} aria-label=${about} aria-current=${on ? "step" : null}
      onKeyDown=${(event) => go(event, i)} onFocus=${() => setAt(i)} onClick=${() => pick?.(node.name)}>
      <title>${about}</title>
      <rect x=${x - width / 2} y=${y - height / 2} width=${width} height=${height} rx="6"/>
      <text x=${x} y=${y - height / 2 + 18} text-anchor="middle" class="name">${node.name}</text>
      ${breaks.filter(([name]) => name === node.name).map(([, when]) => html`<circle class="break" cx=${x + (when === "before" ? -width : width) / 2} cy=${y} r="5"><title>breakpoint ${when} ${node.name}</title></circle>`)}
      ${lines.map((line, n) => html`<text x=${x} y=${y - height / 2 + 32 + 12 * n} text-anchor="middle" class="small">${line}</text>`)}
    </g>`;
  });
  const marker = (name, seen) => html`<marker id=${name} viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"
    markerUnits="userSpaceOnUse" orient="auto"><path class=${`head${seen ? " seen" : ""}`} d="M0 0.500L8 4L0 7.500z"/></marker>`;
  const sizes = [["+", "larger (Ctrl and the mouse wheel)", () => enlarge(1.25)], ["−", "smaller", () => enlarge(0.8)], ["Fit", "as large as there is room", () => setZoom("fit")]];
  return html`<div ref=${pane} tabindex="-1" class=${`picture${stale ? " stale" : ""}`}><svg ref=${image} ...${moving ?? {}} viewBox=${`0 0 ${placed.width} ${placed.height}`} role="group"
    aria-label="the graph" style=${{ width: `${placed.width * scale}px` }}>
    <defs>${marker(id, false)}${marker(`${id}s`, true)}</defs>${arrows}${drawn}
    ${drag && html`<path class="pull" d=${`M${drag.x} ${drag.y}L${drag.toX} ${drag.toY}`}/>`}</svg></div>
    <div class="zoom">${sizes.map(([text, title, press]) => html`<button type="button" title=${title} aria-label=${`picture: ${title}`} onClick=${press}>${text}</button>`)}</div>`;
}

export const ROLES = [["model", "asks a model"], ["environment", "touches the world"], ["memory", "uses memory"], ["compute", "computes"], ["graph", "is a graph"]];

export function Legend({ graph }) {
  const used = new Set(graph.nodes.map((node) => node.role));
  return html`<ul class="legend">${ROLES.filter(([role]) => used.has(role)).map(([role, text]) => html`<li><i class=${role}></i>${text}</li>`)}</ul>`;
}
