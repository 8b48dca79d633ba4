// The drawing: its Mermaid text beside the live picture, the check's findings at their lines, and the palette of nodes.
const { html, useEffect, useRef, useState } = viewLibrary;
import { addArrow, moveInto, putBehind, putInto, putLast, putSettings, removeArrow, removeBox } from "./edit_text.js";
import { Form } from "./form.js";
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
        E.EditorView.domEventHandlers({ beforeinput(event, view) {  // Chromium styles what replaces a selection, which the page's policy forbids
          if (event.inputType !== "insertText" || view.state.selection.main.empty) return false;
          view.dispatch(view.state.replaceSelection(event.data), { userEvent: "input.type", scrollIntoView: true });
          return true;
        } }),
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

const isSame = (edge, other) => ["source", "target", "label"].every((part) => edge[part] === other?.[part]);

function Palette({ ask, insert, found, graph, chosen }) {
  const [groups, setGroups] = useState(null), [wanted, setWanted] = useState("");
  useEffect(() => { ask("nodes").then(setGroups, () => setGroups([])); }, [graph]);
  found.current = (groups ?? []).filter((group) => group.own).flatMap((group) => group.nodes.map((node) => node.name));
  const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (group, node) => words.every((word) => `${group.name} ${node.name} ${node.about}`.toLowerCase().includes(word));
  return html`<div class="card palette"><h3>Nodes <span class="soft">${`a click puts one ${typeof chosen === "string" ? `behind ${chosen}` : chosen ? `between ${chosen.source} and ${chosen.target}` : "before the end"}`}</span></h3><input type="search" placeholder="search the nodes" aria-label="search the nodes" value=${wanted} onInput=${(event) => setWanted(event.currentTarget.value)}/>
    ${words.length > 0 && groups && !groups.some((group) => group.nodes.some((node) => fits(group, node))) && html`<p class="soft">No node has these words.</p>`}
    ${groups?.map((group) => {
      const nodes = group.nodes.filter((node) => fits(group, node));
      return nodes.length > 0 && html`<details key=${group.name} open=${group.own || words.length > 0}><summary>${group.name} <span class="soft">${nodes.length}</span></summary>
        <ul>${nodes.map((node) => html`<li><button type="button" class="plain" title=${node.module && `from ${node.module} import ${node.name}`} onClick=${() => insert(node.name, group.own)}><b>${node.name}</b></button>
          ${" "}<span class="soft">${node.about}</span><span class="soft flow">${["reads", "writes", "settings"].filter((part) => node[part]).map((part) => `${part} ${node[part]}`).join("; ")}</span></li>`)}</ul></details>`;
    })}</div>`;
}

export function EditorView({ ask, dirty, here }) {
  const host = useRef(null), editor = useRef(null), names = useRef([]), turn = useRef(0), edits = useRef(Promise.resolve());
  const [file, setFile] = useState(null), [text, setText] = useState(""), [picture, setPicture] = useState(null);
  const [findings, setFindings] = useState([]), [unread, setUnread] = useState(false), [told, setTold] = useState(null), [choices, setChoices] = useState([]), now = useRef({});
  now.current = { file, text, choices, here, told };
  dirty.current = file !== null && text !== file.text;

  const tellError = (error, more = {}) => setTold({ bad: true, text: error.message, isLost: error.isLost, ...more });
  const forgetLost = () => setTold((one) => (one?.isLost ? null : one));  // the server answers again

  async function check(words) {
    const mine = (turn.current += 1);
    try {
      const found = await ask("check", { text: words });
      forgetLost();
      if (mine !== turn.current) return found.graph;
      if (found.graph) setPicture(found.graph);
      setUnread(!found.graph);
      setFindings(found.findings);
      mark(editor.current, found.findings);
      return found.graph;
    } catch (error) { if (mine === turn.current) tellError(error); }
    return null;
  }
  async function save(version = now.current.file.version) {
    await edits.current;  // what the mouse has changed is a part of it
    const words = editor.current.state.doc.toString();
    try {
      const saved = await ask("save", { text: words, version });
      setFile({ ...now.current.file, text: words, version: saved.version, exists: true });
      setTold({ text: saved.message, warn: !saved.runs });
      return "";
    } catch (error) {
      tellError(error, { theirs: error.details?.version ? error.details : null });
      return error.message;
    }
  }
  dirty.save = () => save();
  // What another tab or program has saved is shown, as long as nothing was changed here; what the nodes are made with, always.
  async function follow() {
    if (document.hidden || !now.current.file || (dirty.current && !now.current.told?.isLost)) return;
    try {
      const found = await ask("drawing"), known = now.current.file, isMine = dirty.current;
      forgetLost();
      if (found.graph === known.graph && (isMine || found.version === known.version)) return;
      setFile(isMine ? { ...known, graph: found.graph } : found);
      if (isMine || found.text === now.current.text) check(now.current.text);
      else replace(found.text);
    } catch { /* the next try may succeed; saving says what is wrong */ }
  }
  function replace(words) {  // only what differs, so that the cursor stays, and as a change of its own for Ctrl Z
    const old = editor.current.state.doc.toString();
    let from = 0, end = 0;
    while (from < Math.min(old.length, words.length) && old[from] === words[from]) from += 1;
    while (end < Math.min(old.length, words.length) - from && old.at(-1 - end) === words.at(-1 - end)) end += 1;
    editor.current.dispatch({ changes: { from, to: old.length - end, insert: words.slice(from, words.length - end) }, userEvent: "input.drop" });
  }
  useEffect(() => {
    let timer;
    const begin = () => ask("drawing").then((found) => {
      setFile(found);
      setText(found.text);
      const changed = (words) => { setText(words); clearTimeout(timer); timer = setTimeout(() => check(words), 200); };
      editor.current = makeEditor(host.current, found.text, () => names.current, changed, () => save());
      check(found.text);
    }, (error) => {
      tellError(error);
      if (error.isLost) timer = setTimeout(begin, 2000);
    });
    begin();
    const following = setInterval(follow, 2000);
    return () => { clearTimeout(timer); clearInterval(following); editor.current?.destroy(); };
  }, []);
  // An edit by the mouse, from what the server reads in the text: which arrows there are, and which their nodes lead by themselves.
  const edit = (change) => {
    edits.current = edits.current.then(async () => {
      const words = editor.current.state.doc.toString(), graph = await check(words);
      if (!graph) { setTold({ bad: true, text: "The text cannot be read: mend it first, or undo the change with Ctrl Z." }); return; }
      try {
        replace(change(words, graph.edges, graph.nodes.map((node) => node.name)));
        setTold(null);
      } catch (error) { setTold({ bad: true, text: error.message }); }
    });
  };
  // The last choice that is in the drawing: where one was put in and undone, the choice before it. Before the end is where one begins.
  const lastDrawn = (drawn, edges) => now.current.choices.map((one) => (typeof one === "string" ? drawn.find((name) => name === one) : edges.find((edge) => isSame(edge, one)))).findLast(Boolean);
  const choose = (one) => {
    now.current.choices = one === "END" ? [] : [...now.current.choices, one];  // at once: the next key may come before the page is drawn
    setChoices(now.current.choices);
  };
  const [form, setForm] = useState(null);
  const chosen = picture && lastDrawn(picture.nodes.map((node) => node.name), picture.edges);
  useEffect(() => {  // the settings of a chosen node of the catalogue, and of none while the text cannot be read
    const words = text, name = typeof chosen === "string" ? chosen : "";
    let isLate = false;
    if (!name || unread) setForm(null);
    else ask("node", { text: words, name }).catch(() => null).then((found) => !isLate && setForm(found && { ...found, key: `${name} ${JSON.stringify(found.value)}`, name }));
    return () => { isLate = true; };
  }, [picture, chosen, unread]);
  const configure = (value) => {
    const usual = form.schema.properties, own = Object.fromEntries(Object.entries(value).filter(([key, one]) => one !== usual[key].default));
    edit((words) => putSettings(words, form.name, own));
  };
  // Of the catalogue's nodes there may be several in a drawing, which are numbered; a graph's own node is drawn once.
  const insert = (name, own) => edit((words, edges, drawn) => {
    if (own && drawn.includes(name)) throw new Error(`'${name}' is drawn already, and the graph has one of it; drag its box onto an arrow to move it.`);
    let called = name;
    for (let n = 2; drawn.includes(called); n += 1) called = `${name}_${n}`;
    const place = lastDrawn(drawn, edges);
    const made = !place ? putLast(words, called, edges) : typeof place === "string" ? putBehind(words, called, place, edges) : putInto(words, called, place, edges);
    choose(called);
    return made;
  });
  const mouse = {
    arrow: (from, to) => edit((words) => addArrow(words, from, to)),
    move: (name, edge) => edit((words, edges) => moveInto(words, name, edges.find((one) => isSame(one, edge)) ?? edge, edges)),
    cut: (edge) => edit((words) => removeArrow(words, edge)),
    choose,
    chosen: (edge) => isSame(edge, chosen),
  };
  // The chosen box or arrow is taken away.
  const remove = () => edit((words, edges, drawn) => {
    const place = lastDrawn(drawn, edges);
    if (!place) throw new Error("Click the box or the arrow that is to be taken away.");
    return typeof place === "string" ? putSettings(removeBox(words, place, edges), place, {}) : removeArrow(words, place);
  });
  useEffect(() => {  // the editor's keys, also while the focus is on the palette or nowhere
    const press = (event) => {
      const target = event.composedPath()[0], isText = /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);
      if (now.current.here && editor.current && /^(Delete|Backspace)$/.test(event.key) && !isText && !target.isContentEditable) {
        remove();
        event.preventDefault();
        return;
      }
      if (!now.current.here || !editor.current || !(event.ctrlKey || event.metaKey) || event.altKey || target.isContentEditable) return;
      const key = event.key.toLowerCase(), undo = key === "z" && !event.shiftKey ? "Mod-z" : key === "y" || key === "z" ? "Mod-y" : "";
      if (key === "s") save();
      else if (undo && !isText) E.historyKeymap.find((one) => one.key === undo).run(editor.current);
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
  const writePython = () => ask("python").then((found) => setTold({ text: found.message }), (error) => setTold({ bad: true, text: error.message }));
  const toLine = (number) => {
    const line = editor.current.state.doc.line(Math.min(number, editor.current.state.doc.lines));
    editor.current.dispatch({ selection: { anchor: line.from }, scrollIntoView: true });
    editor.current.focus();
  };
  const changed = file && text !== file.text;
  return html`<section class="editor">
    <div class="head"><h2>${file?.title ?? "Drawing"}</h2><span class="soft">${file ? `${file.path}${file.exists ? "" : ", a new drawing: nothing is saved yet"}${changed ? ", changed" : ""}` : ""}</span></div>
    <div class="toolbar"><button type="button" class="main" disabled=${!file} aria-keyshortcuts="Control+S" onClick=${() => save()}>Save <kbd>Ctrl S</kbd></button>
      <button type="button" disabled=${!file?.exists || changed} title=${file?.exists && !changed ? "write the Python that makes this graph, beside the drawing's file" : "save the drawing first: the Python file reads what is saved"} onClick=${writePython}>Write its Python file</button>
      <span class="soft">A node of the list goes behind the box that you click, or into the arrow; before the end if none is chosen. Drag a box onto another to draw an arrow, or onto an arrow to move it there; Delete takes the chosen one away, a double click an arrow.</span></div>
    ${told && html`<div role=${told.bad ? "alert" : "status"} class=${`note ${told.bad ? "bad" : told.warn ? "warn" : "good"}`}><p>${told.text}</p>
      ${told.theirs && html`<button type="button" onClick=${() => { setFile({ ...file, text: told.theirs.text, version: told.theirs.version }); replace(told.theirs.text); setTold(null); }}>Take the file's text</button>
        <button type="button" onClick=${() => save(told.theirs.version)}>Save mine over it</button>`}</div>`}
    <div class=${`halves${/^(LR|RL)$/.test(picture?.direction ?? "LR") ? " wide" : ""}`}>
      <div><div class="card code" ref=${host}></div>
        <div class="card"><h3>Check</h3><div role="status">${findings.length === 0 ? html`<p class="soft">Nothing is wrong with this drawing.</p>`
          : html`<ol class="findings">${findings.map((one) => html`<li class=${one.severity}>${one.line ? html`<button type="button" class="plain" onClick=${() => toLine(one.line)}>line ${one.line}</button> ` : ""}${one.message}</li>`)}</ol>`}</div></div>
        <${Palette} ask=${ask} insert=${insert} found=${names} graph=${file?.graph} chosen=${chosen}/></div>
      <div><div class="card">${picture ? html`<${GraphPicture} graph=${picture} stale=${unread} lit=${[chosen].filter((one) => typeof one === "string")} pick=${choose} edit=${mouse}/><${Legend} graph=${picture}/>` : html`<p class="soft">The picture appears when the text can be read.</p>`}</div>
        ${form && html`<div class="card"><${Form} key=${form.key} title=${form.title} form=${{ ...form, title: undefined }} button="Set" takesFocus=${false} submit=${configure}/></div>`}</div>
    </div>
  </section>`;
}
