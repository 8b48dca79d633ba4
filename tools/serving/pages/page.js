// The page: the drawing, the walk and the recorded runs, each behind its tab. The address names what is open, so a reload keeps it.
import { ask } from "./ask.js";
import { short } from "./charts.js";
import { Help } from "./help.js";
import { RunView } from "./run_view.js";

const { html, render, useEffect, useRef, useState } = viewLibrary;

/** The editor and its library, which are loaded only where there is a drawing. */
async function loadEditor() {
  await new Promise((done, fail) => document.head.append(Object.assign(document.createElement("script"), { src: "library/editor.js", onload: done, onerror: fail })));
  return (await import("./editor.js")).EditorView;
}

const read = () => decodeURIComponent(location.hash.slice(1));

/** The scores of a run's episodes as a small curve, on the scale of all runs of its folder. */
function Spark({ scores, runs }) {
  const all = runs.flatMap((run) => run.scores), low = all.reduce((a, b) => Math.min(a, b), Infinity), span = all.reduce((a, b) => Math.max(a, b), -Infinity) - low || 1;
  return scores.length > 1 && html`<svg class="curve spark" viewBox="0 0 90 22" role="img" aria-label=${`scores from ${short(scores[0])} to ${short(scores.at(-1))}`}>
    <polyline points=${scores.map((score, i) => `${(2 + 86 * i / (scores.length - 1)).toFixed(1)},${(20 - 18 * (score - low) / span).toFixed(1)}`).join(" ")}/></svg>`;
}

function Runs({ open }) {
  const [folders, setFolders] = useState(null), [problem, setProblem] = useState("");
  useEffect(() => {
    let timer;
    const look = () => ask("runs").then((found) => { setFolders(found); setProblem(""); }, (error) => setProblem(error.message)).then(() => { timer = setTimeout(look, 2000); });
    look();
    return () => clearTimeout(timer);
  }, []);
  return html`<section><div class="head"><h2>Runs</h2></div>${problem && html`<p role="alert" class="note bad">${problem}</p>`}
    ${folders?.length === 0 && html`<p class="soft">There is no run folder here: <code>learngraph run jitrl --env toy</code> makes one under runs/.</p>`}
    ${folders?.map((folder) => html`<div class="card" key=${folder.folder}><h3>${folder.folder}</h3>
      ${folder.problems.map((text) => html`<p class="note warn">${text}</p>`)}
      ${folder.runs.length > 0 && html`<table class="runs"><thead><tr>${["run", "score", "success", "model", "steps", "episodes", "time", "curve", "state"].map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
        <tbody>${folder.runs.map((run) => html`<tr><td><button type="button" class="plain" onClick=${() => open(`run/${folder.number}/${run.name}`)}>${run.title}</button></td>
          <td>${short(run.score)}</td><td>${run.success === null ? "–" : `${(100 * run.success).toFixed(0)} %`}</td><td>${run.model}</td>
          <td>${run.steps.toLocaleString("en")}</td><td>${run.episodes}</td><td>${run.seconds === null ? "–" : `${short(run.seconds)} s`}</td><td><${Spark} scores=${run.scores} runs=${folder.runs}/></td><td>${run.state}${run.problems.length ? html` <span class="tag bad">damaged</span>` : ""}</td></tr>`)}</tbody></table>`}</div>`)}</section>`;
}

function Page() {
  const [about, setAbout] = useState(null), [problem, setProblem] = useState(""), [place, setPlace] = useState(read());
  const [help, setHelp] = useState(false), [single, setSingle] = useState(true), dirty = useRef(false);
  const [Editor, setEditor] = useState(null);
  useEffect(() => {
    ask("about").then((found) => {
      setAbout(found);
      if (found.tabs.some(([name]) => name === "drawing")) loadEditor().then((made) => setEditor(() => made), () => setProblem("The editor could not be loaded."));
      document.title = `${found.title} – learngraph studio`;
    }, (error) => setProblem(error.message));
    const moved = () => setPlace(read());
    const press = (event) => {
      const target = event.composedPath()[0];
      if (event.key === "?" && !target.isContentEditable && !/^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) setHelp(true);
    };
    const leave = (event) => { if (dirty.current) event.preventDefault(); };
    addEventListener("hashchange", moved);
    addEventListener("keydown", press);
    addEventListener("beforeunload", leave);
    return () => { removeEventListener("hashchange", moved); removeEventListener("keydown", press); removeEventListener("beforeunload", leave); };
  }, []);
  if (problem) return html`<p role="alert" class="note bad alone">${problem}</p>`;
  if (!about) return html`<p class="loading">Loading …</p>`;
  const here = place || about.opens, tabs = about.tabs, tab = here.startsWith("run/") ? "runs" : here;
  const open = (name) => { location.hash = name; };
  return html`<header><b class="brand">learngraph studio</b><nav aria-label="parts"><ul>${tabs.map(([name, text]) => html`<li><a href=${`#${name}`} aria-current=${tab === name ? "page" : null}>${text}</a></li>`)}</ul></nav>
      <button type="button" class="plain" onClick=${() => setHelp(true)}>Keys <kbd>?</kbd></button></header>
    <main>
      ${Editor && html`<div hidden=${tab !== "drawing"}><${Editor} ask=${ask} dirty=${dirty} here=${tab === "drawing"}/></div>`}
      ${here === "walk" && html`<${RunView} key="walk" ask=${ask} view="walk" shortcuts=${single} unsaved=${dirty}/>`}
      ${here === "runs" && html`<${Runs} open=${open}/>`}
      ${here.startsWith("run/") && html`<${RunView} key=${here} ask=${ask} view=${here} shortcuts=${single} walkOn=${(found) => { setAbout(found); open("walk"); }}/>`}
    </main>
    ${help && html`<${Help} close=${() => setHelp(false)}><p><label><input type="checkbox" checked=${single} onChange=${(event) => setSingle(event.currentTarget.checked)}/> keys of one letter work</label></p><//>`}`;
}

render(html`<${Page}/>`, document.getElementById("page"));
