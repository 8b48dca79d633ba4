// The dashboard: a client of the chat API beside which it is served, with the key that its user types in. The key stays in this tab.
// Replies and feedback are strangers' words: they become text nodes only.
import { Bars, Curve, ageGroups, short, since } from "./charts.js";

const { html, render, useEffect, useRef, useState } = viewLibrary;

const KEY = "learngraph-key", STATES = ["pending", "ready", "leased", "consumed", "held_out", "rejected"];
const CURVES = [["reward", "Reward", "mean feedback of each version"], ["loss", "Loss", "of the step"], ["ess", "Effective sample size", "share of the minibatch"],
  ["age", "Age", "steps behind, mean"], ["entropy", "Entropy", "nats per token"], ["kl", "KL to the base", "nats per token"]];

/** A request to the API. Throws an Error with the server's sentence, and its `status`. */
async function call(path, body, key = sessionStorage.getItem(KEY)) {
  const headers = { authorization: `Bearer ${key}`, "content-type": "application/json" };
  const answer = await fetch(`/v1${path}`, body === undefined ? { headers } : { method: "POST", headers, body: JSON.stringify(body) });
  if (answer.ok) return answer;
  let why = `status ${answer.status}`;
  try { why = (await answer.json()).error.message; } catch { /* no envelope: the status has to do */ }
  throw Object.assign(new Error(why), { status: answer.status });
}

const ask = async (path, body) => (await call(path, body)).json();
const nameOf = (label) => label.split("@").pop();

function Login({ enter, problem }) {
  const [key, setKey] = useState(""), [said, setSaid] = useState(problem);
  async function open(event) {
    event.preventDefault();
    try {
      await call("/status", undefined, key);
      sessionStorage.setItem(KEY, key);
      enter();
    } catch (error) { setSaid(error.status === 401 || error.status === 403 ? "This key is not known here." : error.message); }
  }
  useEffect(() => { document.title = "learngraph: log in"; }, []);
  return html`<main><form class="card login" onSubmit=${open}><h2>learngraph</h2>${said && html`<p role="alert" class="note bad">${said}</p>`}
    <label for="key">API key</label><input id="key" type="password" autocomplete="off" required value=${key} onInput=${(event) => setKey(event.currentTarget.value)}/>
    <button class="main">Open the dashboard</button></form></main>`;
}

/** The reply of a model as it grows: `grow(text, version)` is called for each piece. Returns its id and text. */
async function stream(model, messages, options, grow) {
  const answer = await call("/chat/completions", { model, messages, stream: true, ...options });
  const version = nameOf(answer.headers.get("x-policy-version")), reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  const found = { id: "", text: "" };
  for (let rest = ""; ;) {
    const { done, value } = await reader.read();
    if (done) return found;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.slice(event.indexOf("data: ") + 6);
      if (data === "[DONE]") continue;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      found.id = chunk.id;
      found.text += chunk.choices[0]?.delta?.content ?? "";
      grow(found.text, version);
    }
  }
}

function Teach({ id, refresh }) {
  const [reward, setReward] = useState(null), [text, setText] = useState(""), [right, setRight] = useState(""), [state, setState] = useState("");
  async function send(event) {
    event.preventDefault();
    if (reward === null && !text.trim() && !right.trim()) { setState("Choose a thumb, or say what was wrong."); return; }
    setState("sending …");
    try {
      const found = await ask("/feedback", { response_id: id, ...(reward === null ? {} : { reward }), ...(text.trim() ? { text: text.trim() } : {}), ...(right.trim() ? { correction: right.trim() } : {}) });
      setState(`Stored. ${found.note ?? ""}`);
      refresh();
    } catch (error) { setState(`Not stored: ${error.message}`); }
  }
  const thumb = (value, sign, label) => html`<button type="button" data-reward=${value} aria-pressed=${String(reward === value)} aria-label=${label} onClick=${() => setReward(reward === value ? null : value)}>${sign}</button>`;
  return html`<form class="teach" onSubmit=${send}>${thumb(1, "👍", "Good reply")}${thumb(-1, "👎", "Bad reply")}
    <input maxlength="8000" aria-label="What was good or wrong, in words" placeholder="What was good or wrong, in words" value=${text} onInput=${(event) => setText(event.currentTarget.value)}/>
    <input maxlength="8000" aria-label="The reply as it should have been" placeholder="I would have said …" value=${right} onInput=${(event) => setRight(event.currentTarget.value)}/>
    <button>Send feedback</button><output class="soft">${state}</output></form>`;
}

/** Two replies to the same prompt: the one that is chosen is what the other should have been. */
function Choose({ ids, refresh }) {
  const [state, setState] = useState("");
  const choose = (better, than) => ask("/feedback", { response_id: better, better_than: than }).then(() => { setState("Stored."); refresh(); }, (error) => setState(`Not stored: ${error.message}`));
  return html`<p class="toolbar"><button type="button" onClick=${() => choose(ids[0], ids[1])}>The left reply is better</button><button type="button" onClick=${() => choose(ids[1], ids[0])}>The right reply is better</button><output class="soft">${state}</output></p>`;
}

/** The chat with its feedback; the same prompt beside the base model or an older version, both at temperature 0. */
function Chat({ model, versions, refresh }) {
  const [turns, setTurns] = useState([]), [words, setWords] = useState(""), [system, setSystem] = useState("");
  const [beside, setBeside] = useState(""), [busy, setBusy] = useState(false), box = useRef(null);
  const change = (number, more) => setTurns((now) => now.map((turn, i) => (i === number ? { ...turn, ...more } : turn)));
  async function send(event) {
    event?.preventDefault();
    if (!words.trim() || busy) return;
    const number = turns.length, said = turns.filter((turn) => turn.id).flatMap((turn) => [{ role: "user", content: turn.asked }, { role: "assistant", content: turn.live }]);
    const messages = [...(system.trim() ? [{ role: "system", content: system.trim() }] : []), ...said, { role: "user", content: words.trim() }];
    const options = beside ? { temperature: 0 } : {};  // so that only the weights differ
    setTurns([...turns, { asked: words.trim(), beside, live: "", before: "" }]);
    setWords("");
    setBusy(true);
    const live = stream(model, messages, options, (text, version) => change(number, { live: text, version })).then((found) => change(number, { id: found.id }));
    const other = beside ? stream(`${model}@${beside}`, messages, options, (text, version) => change(number, { before: text, beside: version })).then((found) => change(number, { other: found.id })) : null;
    const failed = (await Promise.allSettled([live, other])).filter((each) => each.reason).map((each) => each.reason.message);
    if (failed.length) { change(number, { failed: failed.join(" ") }); setWords(words); }
    setBusy(false);
    refresh();
  }
  const press = (event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event); };
  return html`<h3>Chat and teach</h3><div class="card"><div role="log" aria-live="polite" aria-busy=${String(busy)} aria-label="Conversation">${turns.map((turn) => html`<article class="turn"><p class="soft">${turn.asked}</p>
      <div class="pair-of-replies">${turn.beside && html`<div class="side"><p class="soft">before: <span class="tag">${turn.beside}</span></p><pre>${turn.before}</pre></div>`}
      <div class="side"><p class="soft">live: <span class="tag on live">${turn.version}</span></p><pre class="said">${turn.live}</pre>${turn.id && html`<${Teach} id=${turn.id} refresh=${refresh}/>`}</div></div>
      ${turn.id && turn.other && html`<${Choose} ids=${[turn.other, turn.id]} refresh=${refresh}/>`}
      ${turn.failed && html`<p role="alert" class="note bad">${turn.failed}</p>`}</article>`)}</div>
    <form onSubmit=${send}><details><summary class="soft">System message</summary><textarea rows="3" maxlength="20000" aria-label="System message" value=${system} onInput=${(event) => setSystem(event.currentTarget.value)}></textarea></details>
      <label for="prompt">Message</label><textarea id="prompt" ref=${box} rows="2" maxlength="20000" aria-describedby="keys" value=${words} onInput=${(event) => setWords(event.currentTarget.value)} onKeyDown=${press}></textarea>
      <div class="toolbar"><button class="main" disabled=${busy}>Send</button><button type="button" onClick=${() => { setTurns([]); box.current.focus(); }}>New chat</button>
        <label>Same prompt beside <select id="beside" value=${beside} onChange=${(event) => setBeside(event.currentTarget.value)}><option value="">nothing</option><option value="base">the base model</option>${versions.map((one) => html`<option value=${one.name}>version ${one.name}</option>`)}</select></label></div>
      <p class="soft" id="keys">Enter sends, Shift+Enter begins a line. Beside another version both answer at temperature 0.</p></form></div>`;
}

function Exchange({ item }) {
  const asked = item.messages.filter((one) => one.role === "user" || one.role === "tool").at(-1), told = item.feedback;
  return html`<div class="card exchange"><p class="soft"><span class=${`tag ${item.state === "rejected" ? "bad" : ""}`} title=${item.reason}>${item.state}</span> ${item.adapter} ${nameOf(item.version || "") || "base"} ${item.family} ${since(item.created)}</p>
    <p class="soft">${String(asked?.content ?? item.raw ?? "").slice(0, 1500)}</p><p>${item.reply.slice(0, 1500)}</p>
    <p class="soft">${told ? html`${told.reward === null ? "" : html`<span class=${`tag ${told.reward > 0 ? "good" : "bad"}`}>${told.reward > 0 ? "+" : ""}${told.reward.toFixed(2)}</span>`} ${told.source} ${told.text.slice(0, 600)} ${told.correction ? `should have been: ${told.correction.slice(0, 600)}` : ""}` : "no feedback yet"}</p></div>`;
}

const Check = ({ check }) => {
  const measured = check.value !== null;
  return html`<span class=${`tag ${check.passed ? (measured ? "good" : "") : "bad"}`} title=${`limit ${short(check.limit)}${check.note ? `; ${check.note}` : ""}`}>${measured ? `${check.passed ? "✓" : "✗"} ${check.name} ${short(check.value)}` : `${check.passed ? "" : "✗ "}${check.name} not measured`}</span> `;
};

function Versions({ row, act, learn }) {
  return html`<h3>Versions</h3><div class="card"><div class="head"><span class="soft">Newest first. A version goes live when its gate passes it, or by the button.</span>
      <button onClick=${() => act("rollback", {})}>Roll back</button><button onClick=${() => act("rollback", { to: "base" })}>Back to the base model</button>
      <button onClick=${() => act(row.frozen ? "thaw" : "freeze", {})}>${row.frozen ? "Learn again" : "Learn no more"}</button></div>
    ${row.versions.length === 0 ? html`<p class="soft">No version yet: the base model answers.</p>` : html`<div class="scroll" tabindex="0" role="region" aria-label="Versions"><table><thead><tr>${["Version", "State", "Gate", "Learned from", "Its rewards, mean", "Count", "Created", ""].map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
      <tbody>${row.versions.map((item) => {
        const state = item.label === row.live ? "live" : item.label === row.canary ? "canary" : item.state;
        return html`<tr key=${item.name} data-version=${item.name}><td>${item.name}</td><td><span class=${`tag ${{ live: "good", dropped: "bad" }[state] ?? ""}`} title=${item.why}>${state}</span>${item.tainted && html` <span class="tag bad" title="It learned from exchanges that were deleted later.">tainted</span>`}</td>
          <td>${item.gate.length ? item.gate.map((check) => html`<${Check} check=${check}/>`) : "not measured"}</td>
          <td><button class="plain" aria-label=${`What version ${item.name} learned from`} onClick=${() => learn(item.name)}>${short(item.learned_from)}</button></td>
          <td>${short(item.reward)}</td><td>${item.feedbacks}</td><td class="soft">${since(item.created)}</td>
          <td>${["candidate", "canary", "retired"].includes(state) && html`<button class="promote" onClick=${() => act("promote", { version: item.label })}>Promote</button>`}</td></tr>`;
      })}</tbody></table></div>`}</div>`;
}

function Board({ leave }) {
  const [found, setFound] = useState(null), [problem, setProblem] = useState(""), [chosen, setChosen] = useState("default"), [wanted, setWanted] = useState("");
  async function refresh() {
    if (document.hidden || String(getSelection())) return;
    try {
      const [status, adapters] = await Promise.all([ask("/status"), ask("/adapters")]);
      const row = adapters.data.find((one) => one.adapter === chosen) ?? adapters.data[0];
      const name = wanted || nameOf(row.live) || (row.versions[0]?.name ?? "");
      const newest = `/experiences?limit=20&adapter=${encodeURIComponent(row.adapter)}`, last = await ask(newest);
      let learned = [], trouble = "";
      if (name) await ask(`${newest}&learned_by=${encodeURIComponent(name)}`).then((page) => { learned = page.data; }, (error) => { trouble = error.message; });
      const waits = Object.entries(status.scopes.find((one) => one.adapter === row.adapter)?.held ?? {}).slice(-20).reverse();
      const held = await Promise.all(waits.map(([id, why]) => ask(`/experiences/${encodeURIComponent(id)}`).then((item) => ({ item, why }), () => null)));
      setFound({ held: held.filter(Boolean), status, row, name, learned, trouble, names: adapters.data.map((one) => one.adapter), last: last.data });
      document.title = `${status.tenant}/${row.adapter} · learngraph`;
    } catch (error) {
      if (error.status === 401 || error.status === 403) leave("Log in again.");
      else setProblem(error.message);  // the next try may succeed
    }
  }
  useEffect(() => {
    refresh();
    const timer = setInterval(refresh, 5000);
    return () => clearInterval(timer);
  }, [chosen, wanted]);
  if (!found) return html`<p class="loading">${problem || "Loading …"}</p>`;
  const { status, row, name } = found, scope = status.scopes.find((one) => one.adapter === row.adapter) ?? {}, live = nameOf(row.live), used = status.usage;
  const post = (path, body) => ask(path, body).then(() => { setProblem(""); refresh(); }, (error) => setProblem(error.message));
  const act = (what, body) => post(`/adapters/${row.adapter}/${what}`, body);
  const tile = (title, value, note) => html`<div class="card"><span class="soft">${title}</span><b class="big">${value}</b><span class="soft">${note}</span></div>`;
  return html`<header><b class="brand">learngraph</b><span class="soft">${status.model} · ${status.tenant}</span><nav aria-label="adapters"><ul>${found.names.map((one) => html`<li><a href="#" aria-current=${one === row.adapter ? "page" : null} onClick=${(event) => { event.preventDefault(); setWanted(""); setChosen(one); }}>${one}</a></li>`)}</ul></nav><button onClick=${() => leave("")}>Log out</button></header>
    <main>${problem && html`<p role="alert" class="note bad">${problem}</p>`}
      <${Chat} model=${row.adapter === "default" ? status.model : `${status.model}:${row.adapter}`} versions=${row.versions} refresh=${refresh}/>
      ${status.state !== "ok" && html`<p class="note warn">The service answers, and does not learn. ${status.why || status.learner.error}</p>`}
      <div class="tiles">${tile("Live version", live || "base", row.canary ? `canary ${nameOf(row.canary)}` : "")}${tile("Gradient steps", scope.step ?? 0, `${scope.updates?.length ?? 0} shown below`)}
        ${tile("Learner", status.learner.state, status.learner.error || "no error")}${tile("Ready to learn from", scope.counts?.ready ?? 0, "exchanges with feedback")}
        ${tile("Replies under way", used.streams, `at most ${used.streams_at_once}`)}</div>
      ${scope.learned && html`<h3>Learned in prompts</h3><div class="card scroll"><pre class="soft">${[...scope.learned, ...(scope.lift ?? [])].join("\n")}</pre></div>`}
      ${found.held.length > 0 && html`<h3>Nothing is learned from these</h3><div class="tiles wide">${found.held.map(({ item, why }) => html`<div key=${item.id}><p class="note warn">${why} <button class="release" onClick=${() => post(`/experiences/${encodeURIComponent(item.id)}/release`, {})}>Learn from it</button></p><${Exchange} item=${item}/></div>`)}</div>`}
      <h3>Learning</h3>${(scope.held_up ?? []).map((one) => html`<p class=${`note ${["too few", "ahead", "learned"].includes(one.kind) ? "" : "warn"}`}>${one.why.slice(0, 1).toUpperCase()}${one.why.slice(1)}. <span class="soft">What would help: ${one.help}.</span></p>`)}
      <div class="tiles wide">${CURVES.map(([field, title, unit]) => html`<${Curve} key=${field} title=${title} unit=${unit} name=${field} rows=${(field === "reward" ? row.rewards : scope.updates) ?? []} axis=${field === "reward" ? "version" : "step"}/>`)}</div>
      <${Versions} row=${row} act=${act} learn=${setWanted}/>
      <h3>What ${name ? `version ${name}` : "a version"} learned from</h3>${found.trouble && html`<p class="note warn">${found.trouble}</p>`}
      <div class="tiles wide">${found.learned.map((item) => html`<${Exchange} key=${item.id} item=${item}/>`)}${found.learned.length === 0 && html`<div class="card soft">${name ? "The exchanges of its step were deleted since." : "No version yet. One step learns from a few exchanges with feedback; they will stand here."}</div>`}</div>
      <h3>Buffer</h3><div class="tiles wide"><${Bars} title="Exchanges by state" empty="no exchange yet" counts=${scope.counts ? STATES.map((state) => [state, scope.counts[state] ?? 0]) : []}/><${Bars} title="Ready exchanges by age, in gradient steps" empty="none is ready" counts=${ageGroups(scope.ages ?? {})}/></div>
      <h3>Last exchanges</h3><div class="tiles wide">${found.last.map((item) => html`<${Exchange} key=${item.id} item=${item}/>`)}${found.last.length === 0 && html`<div class="card soft">No exchange yet.</div>`}</div>
      <p class="soft">Updated every 5 seconds.</p></main>`;
}

function Page() {
  const [key, setKey] = useState(sessionStorage.getItem(KEY)), [said, setSaid] = useState("");
  const leave = (why) => { sessionStorage.removeItem(KEY); setSaid(why); setKey(null); };
  return key ? html`<${Board} leave=${leave}/>` : html`<${Login} problem=${said} enter=${() => setKey(sessionStorage.getItem(KEY))}/>`;
}

render(html`<${Page}/>`, document.getElementById("page"));
