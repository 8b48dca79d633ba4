// The drawing: its Mermaid text beside the live picture, the check's findings at their lines, and the palette of nodes.
const { html, useEffect, useRef, useState } = viewLibrary;
import { addArrow, putBehind, putInto, removeArrow, takeOut } from "./edit_text.js";
import { GraphPicture, Legend } from "./graph.js";

const E = editorLibrary;

/** Mermaid in a few colours: what learngraph reads of it is small. */
const mermaid = E.StreamLanguage.define({
  token(stream) {
    if (stream.match(/%%.*/)) return "comment";
    if (stream.match(/(flowchart|graph|subgraph|end|classDef|class|style|linkStyle|direction)\b/)) return "keyword";
    if (stream.match(/(START|END)\b/)) return "atom";
    if (stream.match(/\|[^|]*\|/)) return "string";
    if (stream.match(/-\.+->|={2,}>|-{2,}>|&/)) return "operator";
    if (stream.match(/[\w.+-]+/)) return "variableName";
    stream.next();
    return null;
  },
});
const { tags } = E;
const colours = E.HighlightStyle.define([
  { tag: tags.comment, color: "var(--soft)" },
  { tag: tags.keyword, color: "var(--accent)" },
  { tag: tags.atom, color: "var(--soft)", fontWeight: "600" },
  { tag: tags.string, color: "var(--good)" },
  { tag: tags.operator, color: "var(--soft)" },
]);
const look = E.EditorView.theme({
  "&": { height: "100%", fontSize: "13px", color: "var(--ink)", backgroundColor: "transparent" },
  ".cm-scroller": { fontFamily: "ui-monospace, monospace" },
  ".cm-content": { caretColor: "var(--ink)" },
  "&.cm-focused": { outline: "2px solid var(--accent)", outlineOffset: "-2px" },
  ".cm-gutters": { backgroundColor: "transparent", color: "var(--soft)", border: "none" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "var(--shade)" },
  ".cm-tooltip": { backgroundColor: "var(--card)", color: "var(--ink)", border: "1px solid var(--line)" },
  ".cm-selectionBackground, &.cm-focused .cm-selectionBackground": { backgroundColor: "var(--pick) !important" },
  ".cm-cursor": { borderLeftColor: "var(--ink)" },
});

function makeEditor(host, text, names, changed, save) {
  const complete = (context) => {
    const word = context.matchBefore(/[\w.+-]+/);
    if (!word && !context.explicit) return null;
    return { from: word ? word.from : context.pos, options: ["START", "END", ...names()].map((label) => ({ label })) };
  };
  // In a shadow root the editor's styles are constructed sheets, which the page's policy allows; style elements it does not.
  const root = host.shadowRoot ?? host.attachShadow({ mode: "open", delegatesFocus: true });
  root.replaceChildren();
  return new E.EditorView({
    parent: root,
    root,
    state: E.EditorState.create({
      doc: text,
      extensions: [
        E.lineNumbers(), E.EditorView.lineWrapping, E.highlightActiveLine(), E.drawSelection(), E.history(), E.lintGutter(), mermaid, E.syntaxHighlighting(colours), look,
        E.autocompletion({ override: [complete] }),
        E.EditorView.contentAttributes.of({ "aria-label": "Mermaid text of the graph" }),
        E.keymap.of([{ key: "Mod-s", run: () => { save(); return true; } }, ...E.completionKeymap, ...E.lintKeymap, ...E.historyKeymap, ...E.defaultKeymap]),
        E.EditorView.updateListener.of((update) => update.docChanged && changed(update.state.doc.toString())),
      ],
    }),
  });
}

/** The findings as CodeMirror marks them: at their line, or at the first. */
function mark(view, findings) {
  const { doc } = view.state;
  view.dispatch(E.setDiagnostics(view.state, findings.map((one) => {
    const line = doc.line(Math.min(Math.max(one.line ?? 1, 1), doc.lines));
    return { from: line.from, to: line.to, severity: one.severity ?? "error", message: one.message };
  })));
}

function Palette({ ask, insert, found }) {
  const [groups, setGroups] = useState(null), [wanted, setWanted] = useState("");
  useEffect(() => { ask("nodes").then(setGroups, () => setGroups([])); }, []);
  found.current = (groups ?? []).filter((group) => group.own).flatMap((group) => group.nodes.map((node) => node.name));
  const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (group, node) => words.every((word) => `${group.name} ${node.name} ${node.about}`.toLowerCase().includes(word));
  return html`<div class="card palette"><h3>Nodes</h3><input type="search" placeholder="search the nodes" aria-label="search the nodes" value=${wanted} onInput=${(event) => setWanted(event.currentTarget.value)}/>
    ${groups?.map((group) => {
      const nodes = group.nodes.filter((node) => fits(group, node));
      return nodes.length > 0 && html`<details key=${group.name} open=${group.own || words.length > 0}><summary>${group.name} <span class="soft">${nodes.length}</span></summary>
        <ul>${nodes.map((node) => html`<li><button type="button" class="plain" title=${`put it behind the chosen box${node.module && ` (from ${node.module} import ${node.name})`}`} onClick=${() => insert(node.name)}><b>${node.name}</b></button>
          ${" "}<span class="soft">${node.about}</span>${(node.reads || node.writes) && html`<span class="soft flow">${node.reads && `reads ${node.reads}`}${node.reads && node.writes ? "; " : ""}${node.writes && `writes ${node.writes}`}</span>`}</li>`)}</ul></details>`;
    })}</div>`;
}

export function EditorView({ ask, dirty }) {
  const host = useRef(null), editor = useRef(null), names = useRef([]), turn = useRef(0);
  const [file, setFile] = useState(null), [text, setText] = useState(""), [picture, setPicture] = useState(null);
  const [findings, setFindings] = useState([]), [unread, setUnread] = useState(false), [told, setTold] = useState(null), [chosen, setChosen] = useState(""), now = useRef({});
  now.current = { file, text };
  dirty.current = file !== null && text !== file.text;

  async function check(words) {
    const mine = (turn.current += 1);
    try {
      const found = await ask("check", { text: words });
      if (mine !== turn.current) return;
      if (found.graph) setPicture(found.graph);
      setUnread(!found.graph);
      setFindings(found.findings);
      mark(editor.current, found.findings);
    } catch (error) { if (mine === turn.current) setTold({ bad: true, text: error.message }); }
  }
  async function save(version = now.current.file.version) {
    const words = editor.current.state.doc.toString();
    try {
      const saved = await ask("save", { text: words, version });
      setFile({ ...now.current.file, text: words, version: saved.version, exists: true });
      setTold({ text: saved.message });
    } catch (error) {
      setTold({ bad: true, text: error.message, theirs: error.details?.version ? error.details : null });
    }
  }
  // What another tab or program has saved is shown, as long as nothing was changed here.
  async function follow() {
    if (document.hidden || !now.current.file || dirty.current) return;
    try {
      const found = await ask("drawing");
      if (dirty.current || found.version === now.current.file.version) return;
      setFile(found);
      if (found.text !== now.current.text) replace(found.text);
    } catch { /* the next try may succeed; saving says what is wrong */ }
  }
  function replace(words) {
    editor.current.dispatch({ changes: { from: 0, to: editor.current.state.doc.length, insert: words } });
  }
  useEffect(() => {
    let timer;
    ask("drawing").then((found) => {
      setFile(found);
      setText(found.text);
      const changed = (words) => { setText(words); clearTimeout(timer); timer = setTimeout(() => check(words), 200); };
      editor.current = makeEditor(host.current, found.text, () => names.current, changed, () => save());
      check(found.text);
    }, (error) => setTold({ bad: true, text: error.message }));
    const following = setInterval(follow, 2000);
    return () => { clearTimeout(timer); clearInterval(following); editor.current?.destroy(); };
  }, []);
  // A node that is drawn already, of which the catalogue has another, is numbered.
  const insert = (name) => {
    const words = now.current.text, drawn = new Set(picture?.nodes.map((node) => node.name));
    let own = name;
    for (let n = 2; drawn.has(own); n += 1) own = `${name}_${n}`;
    const last = picture?.edges.find((edge) => edge.target === "END")?.source ?? "START";
    const place = drawn.has(chosen) ? chosen : last;
    replace(putBehind(words, own, place));
    setChosen(own);
  };
  const mouse = {
    arrow: (from, to) => replace(addArrow(now.current.text, from, to)),
    move: (name, from, to) => replace(putInto(takeOut(now.current.text, name), name, from, to)),
    cut: (from, to) => replace(removeArrow(now.current.text, from, to)),
  };
  const writePython = () => ask("python").then((found) => setTold({ text: found.message }), (error) => setTold({ bad: true, text: error.message }));
  const toLine = (number) => {
    const line = editor.current.state.doc.line(Math.min(number, editor.current.state.doc.lines));
    editor.current.dispatch({ selection: { anchor: line.from }, scrollIntoView: true });
    editor.current.focus();
  };
  const changed = file && text !== file.text;
  return html`<section class="editor">
    <div class="head"><h2>${file?.title ?? "Drawing"}</h2><span class="soft">${file ? `${file.path}${file.exists ? "" : ", not written yet"}${changed ? ", changed" : ""}` : ""}</span></div>
    <div class="toolbar"><button type="button" class="main" disabled=${!file} aria-keyshortcuts="Control+S" onClick=${() => save()}>Save <kbd>Ctrl S</kbd></button>
      <button type="button" disabled=${!file?.exists || changed} onClick=${writePython}>Write its Python file</button>
      <span class="soft">Drag a box onto another to draw an arrow, or onto an arrow to move it there; a double click takes an arrow away.</span></div>
    ${told && html`<div role=${told.bad ? "alert" : "status"} class=${`note ${told.bad ? "bad" : "good"}`}><p>${told.text}</p>
      ${told.theirs && html`<button type="button" onClick=${() => { setFile({ ...file, text: told.theirs.text, version: told.theirs.version }); replace(told.theirs.text); setTold(null); }}>Take the file's text</button>
        <button type="button" onClick=${() => save(told.theirs.version)}>Save mine over it</button>`}</div>`}
    <div class="halves">
      <div><div class="card code" ref=${host}></div>
        <div class="card"><h3>Check</h3><div role="status">${findings.length === 0 ? html`<p class="soft">Nothing is wrong with this drawing.</p>`
          : html`<ol class="findings">${findings.map((one) => html`<li class=${one.severity}>${one.line ? html`<button type="button" class="plain" onClick=${() => toLine(one.line)}>line ${one.line}</button> ` : ""}${one.message}</li>`)}</ol>`}</div></div>
        <${Palette} ask=${ask} insert=${insert} found=${names}/></div>
      <div><div class="card">${picture ? html`<${GraphPicture} graph=${picture} stale=${unread} lit=${[chosen]} pick=${setChosen} edit=${mouse}/><${Legend} graph=${picture}/>` : html`<p class="soft">The picture appears when the text can be read.</p>`}</div></div>
    </div>
  </section>`;
}
