// A run: its graph with the present node lit, the moments, the state, the decision, memory, the fork tree, and the buttons of a live walk.
const { html, useCallback, useEffect, useRef, useState } = viewLibrary;
import { Chat } from "./chat.js";
import { Form } from "./form.js";
import { GraphPicture, Legend } from "./graph.js";
import { Help } from "./help.js";
import { LongList } from "./list.js";
import { Cells, Decision, Explanation, Memory, StateTable, Value } from "./values.js";

const PAGE = 100, WAIT = 1000;

/** The lines about a branch's moments, asked for by the page as they come into sight. */
function useRows(ask, view, branch, level, count, report) {
  const kept = useRef({}), asked = useRef(new Set()), [, redraw] = useState(0), name = [view, branch, level].join("\n");
  if (kept.current.name !== name) {
    kept.current = { name };
    asked.current = new Set();
  }
  const need = useCallback(async (from, to) => {
    for (let page = Math.floor(from / PAGE); page * PAGE < to; page += 1) {
      const known = kept.current[page]?.length ?? 0, wanted = Math.min(PAGE, count - page * PAGE), mark = `${name} ${page} ${wanted}`;
      if (known >= wanted || asked.current.has(mark)) continue;
      asked.current.add(mark);
      try {
        const found = await ask("moments", { view, branch, start: page * PAGE, count: PAGE });
        if (kept.current.name === name) kept.current[page] = found.rows;
        redraw((n) => n + 1);
      } catch (error) {
        asked.current.delete(mark);
        if (kept.current.name === name) report(error);
      }
    }
  }, [name, count]);
  return [(i) => kept.current[Math.floor(i / PAGE)]?.[i % PAGE] ?? null, need];
}

const BUTTONS = [
  ["step", "Step", "s", "step over: run the next node, with all of its graph if it has one"],
  ["round", "Round", "r", "run on until this node comes again"],
  ["into", "Into", "i", "enter the graph that is the next node"],
  ["out", "Out", "u", "leave this graph, when it has ended"],
  ["back", "Back", "b", "to the moment before, also of the turn before; what was taken stays in the fork tree"],
  ["fork", "Fork", "f", "another future from the moment that is shown; memory keeps nothing of it"],
  ["keep", "Keep", "k", "write into memory what this what-if has written: from here on it is the real run"],
  ["drop", "Drop", "d", "forget this what-if, and the turns that were said in it"],
  ["finish", "Finish", "e", "run to the end"],
  ["begin", "New run", "n", "begin another run"],
];

function Toolbar({ ask, names, breaks, act, stop, mark, busy, stopping, nodes, change }) {
  const can = new Set(names);
  return html`<div class="toolbar" role="toolbar" aria-label="walk">
    ${BUTTONS.filter(([name]) => !["into", "out", "keep", "drop"].includes(name) || can.has(name)).map(([name, text, key, title]) => html`<button key=${name} type="button" disabled=${busy || !can.has(name)} title=${`${title} (${key})`}
      aria-keyshortcuts=${key} class=${name === "step" ? "main" : ""} onClick=${() => act(name)}>${text} <kbd>${key}</kbd></button>`)}
    ${busy && html`<button type="button" class="main" disabled=${stopping} title="stop at the model's next token, or after the node that is running" onClick=${stop}>${stopping ? "Stopping …" : "Stop"}</button>`}
    ${change && html`<button type="button" disabled=${busy} title="change the method's settings, and begin a run with them" onClick=${change}>Settings …</button>`}
    ${can.has("open") && html`<${Threads} ask=${ask} act=${act}/>`}
    <${Breakpoints} nodes=${nodes} breaks=${breaks} act=${mark}/>
    <label><select aria-label="run to a node" disabled=${busy || !can.has("until")} onChange=${(event) => { const node = event.currentTarget.value; event.currentTarget.value = ""; if (node) act("until", { node }); }}>
      <option value="">run to …</option>${nodes.map((name) => html`<option>${name}</option>`)}</select></label>
  </div>`;
}

/** What the walk that is shown is at, and what leads on. */
function guide(shown, isChat, hasForm) {
  if (!shown) return `No run has begun: ${isChat ? "say something in the chat" : hasForm ? "give its input below" : "press New run"}.`;
  const what = shown.what_if ? " This is a what-if: memory keeps nothing of it until you press Keep, and it is gone when its Python ends."
    : !shown.record ? " The record of the run's thread has gone on without it: the fork tree says which walk that is."
    : shown.thread ? ` The graph's checkpointer keeps the run as thread ${shown.thread}.` : "";
  if (shown.questions.some((one) => !one.asks_anew)) return `The run waits for an answer: give it below.${what}`;
  if (shown.note !== "at the end") return `The walk stands ${shown.note}. Step runs that${shown.questions.length ? " to its question, which may be answered below at once" : ""}, Finish runs to the end; a click on a box runs to it.${what}`;
  return `${isChat ? "The turn has ended: say more, or " : "The run has ended: "}Back leads to earlier moments, Fork tries another future, New run begins again.${what}`;
}

/** One line a branch: where it left its parent, and how long it is. */
function ForkTree({ overview, branch, at, choose }) {
  const { branches } = overview, starts = new Map([["", 0]]);  // the next turn of a chat counts from where its parent has ended
  for (const one of branches) starts.set(one.id, starts.get(one.parent) + (one.is_turn ? one.fork_at : 0));
  const longest = Math.max(1, ...branches.map((one) => starts.get(one.id) + one.count - 1));
  const note = (one) => `${one.note}${one.record && branches.length > 1 ? ", the thread's record" : ""}`;
  const x = (n, id) => 6 + 78 * (starts.get(id) + n) / longest, y = (i) => 13 + 26 * i, index = new Map(branches.map((one, i) => [one.id, i]));
  return html`<div class="forks"><svg width="90" height=${26 * branches.length} aria-hidden="true">
    ${branches.map((one, i) => html`<g class=${one.id === branch ? "on" : ""}>
      ${one.parent && html`<path d=${`M${x(one.fork_at, one.parent)} ${y(index.get(one.parent))}V${y(i)}`}/>`}
      <path d=${`M${x(one.is_turn ? 0 : one.fork_at, one.id)} ${y(i)}H${x(one.count - 1, one.id)}`}/><circle cx=${x(one.count - 1, one.id)} cy=${y(i)} r="4"/>
      ${one.id === branch && html`<circle class="here" cx=${x(Math.min(at, one.count - 1), one.id)} cy=${y(i)} r="5.500"/>`}</g>`)}</svg>
    <ul>${branches.map((one) => html`<li key=${one.id}><button type="button" class="plain" title=${`${one.name} ${note(one)}`} aria-pressed=${String(one.id === branch)} onClick=${() => choose(one.id)}>
      ${one.name}<span class="soft"> ${note(one)}</span></button></li>`)}</ul></div>`;
}

const WORDS = { schema: { type: "string", description: "JSON, or words" }, value: "", needed: 'Type an answer; "" answers with nothing.' };

/** A form a question, so that one is answered while the others stay as they are (their ids change with an answer that is changed); an answer may be changed as long as others are open. */
function Questions({ questions, answered, act }) {
  const [changing, setChanging] = useState(null), told = (one) => `${one.node} ${one.asks_anew ? "asked this before; the answer goes to what it asks now" : "asks"}: ${one.text}`;
  const form = (one, given) => (given === undefined ? one.form ?? { ...WORDS } : { ...(one.form ?? WORDS), value: one.form || typeof given === "string" ? given : JSON.stringify(given) });
  const ask = (one, button, close) => html`<div class="card" key=${`${one.place} ${one.text}`}><${Form} title=${told(one)} form=${form(one, one.answer)} takesFocus=${!one.asks_anew} button=${button} close=${close}
    about=${one.parts.map((part) => html`<${Value} value=${part} open=${true}/>`)} submit=${(value) => { setChanging(null); act("resume", { answers: { [one.id]: value } }); }}/></div>`;
  return html`${answered.map((one) => (changing === one.id ? ask(one, "Change the answer", () => setChanging(null))
    : html`<p class="card answered" key=${one.id}>${told(one)} <b>${one.line}</b> <button type="button" onClick=${() => setChanging(one.id)}>Change</button></p>`))}
    ${questions.map((one) => ask(one, "Answer", null))}`;
}

/** A box below a button, which closes at a click beside it; `opened` is called when it opens. */
function Menu({ title, opened, children }) {
  const box = useRef(null);
  useEffect(() => {
    const close = (event) => {
      if (!box.current?.open || (event.type === "keydown" ? event.key !== "Escape" : event.composedPath().includes(box.current))) return;
      box.current.open = false;
    };
    addEventListener("pointerdown", close, true);
    addEventListener("keydown", close, true);
    return () => { removeEventListener("pointerdown", close, true); removeEventListener("keydown", close, true); };
  }, []);
  return html`<details class="menu" ref=${box} onToggle=${() => box.current.open && opened?.()}><summary>${title}</summary><div class="card">${children}</div></details>`;
}

/** Opens a run that the graph's checkpointer has kept: by its id, or one of the newest. */
function Threads({ ask, act }) {
  const [found, setFound] = useState([]), close = (event) => { event.currentTarget.closest("details").open = false; };
  const given = (event) => { event.preventDefault(); close(event); act("open", { thread: event.currentTarget.elements[0].value.trim() }); };
  return html`<${Menu} title="Open thread" opened=${() => ask("threads").then(setFound, () => setFound([]))}>
    <form onSubmit=${given}><input aria-label="id of a thread" placeholder="its id" required/> <button class="main">Open</button></form>
    ${found.map(([thread, time]) => html`<p key=${thread}><button type="button" class="plain" onClick=${(event) => { close(event); act("open", { thread }); }}>${thread}</button> <span class="soft">${new Date(time).toLocaleString()}</span></p>`)}<//>`;
}

function Breakpoints({ nodes, breaks, act }) {
  const has = (node, when) => breaks.some(([name, kind]) => name === node && kind === when);
  return html`<${Menu} title=${`Breakpoints${breaks.length ? ` (${breaks.length})` : ""}`}><table><thead><tr><th>node</th><th>before</th><th>after</th></tr></thead><tbody>
    ${nodes.map((node) => html`<tr><td>${node}</td>${["before", "after"].map((when) => html`<td><input type="checkbox" aria-label=${`pause ${when} ${node}`} checked=${has(node, when)} onChange=${() => act({ node, when })}/></td>`)}</tr>`)}
  </tbody></table><//>`;
}

/** `unsaved`: a ref that is true while the drawing has changes that are not saved; its `save()` returns what went wrong. */
export function RunView({ ask, view, shortcuts = true, wait = WAIT, walkOn = null, unsaved = null }) {
  const [overview, setOverview] = useState(null), [branch, setBranch] = useState(""), [at, setAt] = useState(-1);
  const [moment, setMoment] = useState(null), [problem, setProblem] = useState(null), [mine, setBusy] = useState(false), [stopping, setStopping] = useState(false);
  const [asking, setAsking] = useState(null), [running, setLive] = useState([]), [why, setWhy] = useState(null), [follow, setFollow] = useState(true), [help, setHelp] = useState(false), [held, setHeld] = useState(null), [compared, setCompared] = useState(null);
  const seen = useRef({}), root = useRef(null), turn = useRef(0), last = useRef(null);  // the last input that was given
  const missed = (error) => seen.current.mine || report(error);  // this tab may be dropping the branch that it asked about; it asks anew then
  const report = (error) => setProblem({ text: error.message, trace: error.details?.traceback, isLost: error.isLost });
  const shown = overview?.branches.find((one) => one.id === branch), count = shown?.count ?? 0, place = shown?.place ?? "";
  const live = overview?.kind === "live", busy = mine || overview?.state === "running";  // by this tab, or another
  const can = shown?.can ?? overview?.can ?? [];  // of the walk that is shown: another may be the last that moved
  seen.current = { overview, branch, at, count, place, can, follow, busy, mine, asking };

  /** Show an overview: `jump` goes to the walk that has moved last, "end" to the end of this one. */
  function take(found, jump = "") {
    if (found.same) return;
    const { branch: old, at: where, count: before, overview: known, follow: follows } = seen.current;
    const next = jump === "jump" || !known || !found.branches.some((one) => one.id === old) ? found.current
      : !jump && follows && where >= before - 1 && old === known.current ? found.current : old;
    const length = found.branches.find((one) => one.id === next)?.count ?? 0;
    if (known?.branches.length && known.session !== found.session) {
      const thread = known.branches.find((one) => one.id === old)?.thread || known.branches.findLast((one) => one.thread)?.thread;
      const text = thread ? `what-ifs are gone. The graph's checkpointer has kept thread ${thread}.` : "the runs and what was said before are gone.";
      setProblem({ text: `The studio was started anew: ${text}`, thread: found.can.includes("open") && thread });
    }
    setOverview(found);
    setBranch(next);
    if (jump || !known || next !== old || (follows && where >= before - 1)) setAt(length - 1);
    else if (where >= length) setAt(length - 1);
  }

  useEffect(() => {
    let over = false, timer;
    async function look() {
      try {
        if (!document.hidden && !seen.current.mine) {
          const found = await ask("overview", { view, version: seen.current.overview?.version });
          if (over) return;
          setProblem((told) => (told?.isLost ? null : told));  // it answers again
          if (!seen.current.mine) take(found);
        }
      } catch (error) { if (!over) report(error); }
      if (!over) timer = setTimeout(look, wait);
    }
    look();
    return () => { over = true; clearTimeout(timer); };
  }, [view]);

  useEffect(() => {
    if (at < 0 || !branch) { setMoment(null); return; }
    const mine = (turn.current += 1);
    setWhy(null);
    ask("moment", { view, branch, number: at }).then((found) => { if (mine === turn.current) setMoment(found); }, (error) => mine === turn.current && missed(error));
  }, [view, branch, at, overview?.version]);

  const compare = (other) => ask("compare", { branch, other }).then((found) => setCompared({ ...found, of: branch, other }), (error) => { setCompared(null); missed(error); });
  useEffect(() => { if (compared?.of === branch && !busy) compare(compared.other); }, [overview?.version, busy]);  // where they stand once the run rests

  useEffect(() => { setHeld(null); }, [branch, overview?.session]);  // it was asked about another walk

  const close = () => { setAsking(null); setHeld(null); };
  /** True where a value was typed and is not written, which `go` would lose: the page asks first. */
  const wouldLose = (go) => {
    const { form, channel } = seen.current.asking ?? {};
    if (!form || !("typed" in form)) return false;
    setHeld({ text: `What is typed for ${channel ?? "the new run"} is not written yet.`, button: "Discard it", go: () => { delete form.typed; setHeld(null); go(); } });
    return true;
  };

  /** True if it was done; also of a turn that has begun, and was stopped or failed. */
  const act = useCallback(async (name, more = {}, asSaved = false) => {
    const now = seen.current;
    let isDone = true;
    if (now.busy) return false;
    setHeld(null);
    if (name !== "edit" && more.input === undefined && wouldLose(() => act(name, more, asSaved))) return false;
    if (name === "begin" && now.overview.form && more.input === undefined) { setAsking({ form: { ...now.overview.form, value: last.current ?? now.overview.form.value } }); return false; }
    if ((name === "begin" || (name === "say" && !now.branch)) && unsaved?.current && !asSaved) { setHeld({ go: () => act(name, more, true) }); return false; }
    const one = now.overview?.branches.find(({ id }) => id === now.branch);
    if (name === "drop" && !asSaved && one.count > one.fork_at + 1) {
      setHeld({ text: `Drop forgets ${one.name}, with its moments and what it has written; nothing brings them back.`, button: "Drop it", go: () => act(name, more, true) });
      return false;
    }
    setBusy(true);
    setProblem(null);
    try {
      const extra = name === "fork" ? { at: now.at } : {};
      take(await ask("act", { view, do: name, branch: now.branch, expected: now.place, ...extra, ...more }), "jump");
      setAsking(null);
    } catch (error) {
      report(error);
      isDone = false;
      try {
        const found = await ask("overview", { view });
        isDone = name === "say" && found.current !== now.branch;  // the turn has begun, and stands there
        take(found, isDone ? "jump" : "end");
      } catch { /* told already */ }
    }
    setBusy(false);
    return isDone;
  }, [view]);

  useEffect(() => {  // while a walk runs; a notebook's kernel answers only afterwards
    setLive([]);
    setStopping(false);
    if (!busy || shortcuts === "inside") return undefined;
    const timer = setInterval(() => ask("live").then((found) => setLive(found.running), () => {}), 200);
    return () => clearInterval(timer);
  }, [busy]);

  const tell = (args) => ask("act", { view, branch, expected: "", ...args }).then((found) => setOverview(found)).catch(report);
  const begin = (channel, index) => wouldLose(() => begin(channel, index)) || ask("form", { branch, channel, index }).then((form) => setAsking({ channel, index, form }), report);
  const write = (value) => JSON.stringify(value) === JSON.stringify(asking.form.value) ? close() : act("edit", { channel: asking.channel, index: asking.index, value });
  const editor = (channel, index) => ({
    form: () => asking?.channel === channel && asking.index === index && html`<${Form} title=${index === undefined ? channel : `${channel}, ${index}`} form=${asking.form} submit=${write} close=${close}/>`,
    begin: () => begin(channel, index),
    at: (i) => editor(channel, i),
  });

  useEffect(() => {
    if (!shortcuts || !overview) return undefined;
    function press(event) {
      const target = event.composedPath()[0];
      if (event.ctrlKey || event.altKey || event.metaKey || target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) return;
      if (shortcuts === "inside" ? !root.current?.contains(event.target) : document.querySelector("dialog[open]")) return;
      const { at: where, count: length, can: known } = seen.current, button = BUTTONS.find(([, , key]) => key === (event.key === "o" ? "s" : event.key));
      if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
        if (target.closest?.(".scroll")) return;
        event.preventDefault();
        setAt(Math.min(length - 1, Math.max(0, where + (event.key === "ArrowLeft" ? -1 : 1))));
      } else if (event.key === "?" && shortcuts === "inside") {
        setHelp(true);
      } else if (button && known.includes(button[0])) {
        event.preventDefault();
        act(button[0]);
      }
    }
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  }, [shortcuts, overview !== null, act]);

  const [rows, need] = useRows(ask, view, branch, (shown?.inside ?? []).join(), count, missed);
  const explain = async () => {
    const mine = turn.current;
    setWhy({ sentences: ["Looking it up …"], tables: [] });
    try {
      const found = await ask("explain", { view, branch, number: at });
      if (mine === turn.current) setWhy(found);
    } catch (error) { setWhy(null); report(error); }
  };
  const walkFrom = async () => {
    setBusy(true);
    setProblem(null);
    try { walkOn(await ask("walk_from", { view, branch, number: at })); } catch (error) { report(error); setBusy(false); }
  };
  if (!overview) return html`<div ref=${root}>${problem ? html`<p role="alert" class="note bad">${problem.text}</p>` : html`<p class="loading">Loading …</p>`}</div>`;
  const graph = overview.graphs[shown?.graph ?? ""], nodes = graph?.nodes.map((node) => node.name).filter((name) => name !== "START" && name !== "END") ?? [];
  const others = live ? overview.branches.filter((one) => one.id !== branch && one.inside.length === shown?.inside.length) : [];
  const choose = (id) => { if (wouldLose(() => choose(id))) return; setAsking(null); setBranch(id); setAt((overview.branches.find((one) => one.id === id)?.count ?? 0) - 1); };
  const change = () => wouldLose(change) || setAsking({ form: { ...overview.settings } });
  const isChat = Boolean(overview.form?.schema.properties?.messages), isNew = live && !overview.branches.length;
  const isAsked = live && shown?.questions.length > 0, asksInput = asking ? !asking.channel && !asking.form.title : isNew && !isChat && overview.form;
  const questions = isAsked && html`<div hidden=${busy}><${Questions} key=${branch} questions=${shown.questions} answered=${shown.answered} act=${act}/></div>`;
  const redrawn = overview.is_redrawn || (live && !isNew && unsaved?.current);
  const episode = overview.branches.findIndex((one) => one.id === branch);
  const stateCard = html`<div class="card"><h3>State <span class="soft">${moment?.title ?? ""}</span></h3>
    ${moment && html`<${StateTable} state=${moment.state} edit=${live && !busy && at === count - 1 ? editor : null}/>`}
    ${live && at === count - 1 && moment?.unset?.length > 0 && html`<label class="soft">not set: <select onChange=${(event) => { if (event.currentTarget.value) begin(event.currentTarget.value); event.currentTarget.value = ""; }}>
      <option value="">set …</option>${moment.unset.map((name) => html`<option>${name}</option>`)}</select></label>`}
    ${asking?.channel && moment?.unset?.includes(asking.channel) && editor(asking.channel).form()}</div>`;
  return html`<section class="run" ref=${root} tabindex=${shortcuts === "inside" ? -1 : undefined} aria-busy=${String(busy)}>
    <div class="head"><h2>${overview.title}</h2><span class="soft">${busy && live ? "running" : shown?.state ?? overview.state}${live ? "" : `, ${overview.steps.toLocaleString("en")} steps in ${overview.episodes.toLocaleString("en")} episodes`}</span>
      ${!live && overview.state !== "finished" && html`<label><input type="checkbox" checked=${follow} onChange=${(event) => setFollow(event.currentTarget.checked)}/> follow</label>`}
      ${shortcuts === "inside" && html`<button type="button" class="plain" onClick=${() => setHelp(true)}>Keys <kbd>?</kbd></button>`}</div>
    ${help && html`<${Help} inside=${true} close=${() => setHelp(false)}/>`}
    ${problem && html`<div role="alert" class="note bad"><p>${problem.text}</p>${problem.trace && html`<details><summary>where</summary><pre>${problem.trace}</pre></details>`}
      ${problem.thread && html`<button type="button" class="main" onClick=${() => act("open", { thread: problem.thread })}>Open it</button>`}<button type="button" class="plain" onClick=${() => setProblem(null)}>close</button></div>`}
    ${held?.text && html`<div role="alert" class="note warn"><p>${held.text}</p>
      <button type="button" class="main" onClick=${held.go}>${held.button}</button><button type="button" class="plain" onClick=${() => setHeld(null)}>Cancel</button></div>`}
    ${held && !held.text && html`<div role="alert" class="note warn"><p>The drawing has changes that are not saved. A run walks what is saved.</p>
      <button type="button" class="main" onClick=${() => unsaved.save().then((failed) => (failed ? report(new Error(failed)) : held.go()))}>Save and run it</button><button type="button" onClick=${held.go}>Run without the changes</button>
      <button type="button" class="plain" onClick=${() => setHeld(null)}>Cancel</button></div>`}
    ${live && html`<${Toolbar} ask=${ask} names=${can} breaks=${overview.breaks} act=${act} stop=${() => { setStopping(true); tell({ do: "stop" }); }} stopping=${stopping} mark=${(more) => tell({ do: "break", ...more })} busy=${busy} nodes=${nodes}
      change=${overview.settings && change}/>`}
    <p class="soft guide">${!live ? `A run that was played. Choose a step to see what was known, decided and remembered${walkOn ? "; Walk on from here opens a live walk" : ""}.`
      : !busy ? guide(shown, isChat, Boolean(overview.form)) : `${running.map((one) => `${one.node}, ${one.seconds.toFixed(1)} s`).join("; ") || "Running …"}${stopping ? ": the walk stops when that has ended" : ""}`}</p>
    ${shown?.inside?.length > 0 && html`<p class="soft">inside ${shown.inside.join(" › ")}</p>`}
    <p class="sr" role="status">${busy ? "running" : moment?.title ?? ""}</p>
    ${[...overview.problems, ...(moment?.problems ?? []), ...(redrawn ? ["The drawing has changed: New run takes it."] : [])].map((text) => html`<p class="note warn">${text}</p>`)}
    ${asking && !asking.channel && asking.form.title && html`<div class="card"><${Form} title=${asking.form.title} form=${asking.form} button="Begin a run with these" submit=${(input) => act("begin", { input })} close=${close}/></div>`}
    <div class=${isAsked || isChat || asksInput ? "stage" : null}><div>
      ${asksInput && html`<div class="card"><${Form} title="Input of the run" form=${asking?.form ?? overview.form} button="Begin" submit=${(input) => { last.current = input; act("begin", { input }); }} close=${asking && close}/></div>`}
      ${isChat ? html`<div hidden=${Boolean(asksInput)}><${Chat} state=${moment?.state} live=${running} act=${act} can=${can.includes("say")} busy=${busy}/></div>` : questions}</div><div>
      ${graph && html`<div class="card"><${GraphPicture} graph=${graph} lit=${moment?.lit ?? []} passes=${moment?.passes ?? null} breaks=${overview.breaks ?? []}
        pick=${live && can.includes("until") ? (node) => act("until", { node }) : null}/><${Legend} graph=${graph}/></div>`}
      ${isChat && questions}${isChat && !isNew && stateCard}</div></div>
    ${compared?.of === branch && html`<div class="card compared"><div class="head"><h3>${compared.head.slice(2).join(" and ")} <span class="soft">${compared.title}</span></h3><button type="button" class="plain" onClick=${() => setCompared(null)}>close</button></div>
      ${compared.rows.length ? html`<${Cells} table=${compared}/>` : html`<p>They are the same.</p>`}</div>`}
    ${!isNew && html`<div class="columns">
      <div>
        <div class="card"><h3>${live ? "Fork tree" : "Episodes"}</h3>${live ? html`<${ForkTree} overview=${overview} branch=${branch} at=${at} choose=${choose}/>
            ${others.length > 0 && html`<label class="soft">compare with <select disabled=${busy} onChange=${(event) => { if (event.currentTarget.value) compare(event.currentTarget.value); event.currentTarget.value = ""; }}>
              <option value="">another walk …</option>${others.map((one) => html`<option value=${one.id}>${one.name}</option>`)}</select></label>`}`
          : html`<${LongList} label="episodes" height=${156} count=${overview.branches.length} selected=${episode} need=${() => {}} choose=${(i) => choose(overview.branches[i].id)}
            rows=${(i) => ({ title: overview.branches[i].name, text: `${overview.branches[i].count} steps, ${overview.branches[i].note}` })}/>`}</div>
        <div class="card"><h3>${live ? "Moments" : "Steps"} <span class="soft">${shown?.name ?? ""}</span></h3>
          <${LongList} label=${live ? "moments" : "steps"} height=${390} count=${count} selected=${at} rows=${rows} need=${need} choose=${setAt}/></div>
      </div>
      <div>
        ${(moment?.decision || moment?.can_explain) && html`<div class="card"><h3>Decision</h3>${moment.decision && html`<${Decision} decision=${moment.decision}/>`}
          ${moment.can_explain && html`<button type="button" onClick=${explain}>Why this action?</button>`}
          ${moment.can_explain && walkOn && html` <button type="button" disabled=${busy} title="plays the run again up to here, and goes on live" onClick=${walkFrom}>${busy ? "Playing up to here …" : "Walk on from here"}</button>`}${why && html`<${Explanation} found=${why}/>`}</div>`}
        ${moment && moment.memory.read.length + moment.memory.written.length > 0 && html`<div class="card"><h3>Memory ${shown?.what_if ? html`<span class="soft">as this what-if sees it</span>` : ""}</h3><${Memory} memory=${moment.memory}/></div>`}
        ${moment?.costs?.length > 0 && html`<div class="card"><h3>Time and tokens</h3><table><tbody>${moment.costs.map((row) => html`<tr>${row.map((cell) => html`<td>${cell}</td>`)}</tr>`)}</tbody></table></div>`}
      </div>
      ${!isChat && stateCard}
    </div>`}
  </section>`;
}
