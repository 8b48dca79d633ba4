// The chat box, feedback on its replies, the same prompt beside another version, and a page that brings itself up to date.
// Replies are strangers' text: they go into the page as textContent only.
const talk = document.getElementById("talk"), form = document.getElementById("ask"), beside = document.getElementById("beside");
const prompt_ = document.getElementById("prompt"), turn = document.getElementById("turn"), { model, token } = form.dataset;
let said = [];  // the chat so far, as the live version answered it

async function post(path, body) {
  const headers = { "content-type": "application/json", "x-form-token": token };
  const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
  if (answer.ok) return answer;
  let why = `status ${answer.status}`;
  try { why = (await answer.json()).error.message; } catch { /* no envelope: the status has to do */ }
  throw new Error(why);
}

// One reply as it grows: its id, text and version.
async function reply(name, messages, options, side) {
  const answer = await post("/dashboard/chat", { model: name, messages, stream: true, ...options });
  const version = answer.headers.get("x-policy-version"), text = side.querySelector(".said");
  side.querySelector(".badge").textContent = version.split("@").pop();
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  const found = { id: "", text: "", version };
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
      text.textContent = found.text;
    }
  }
}

function teach(box, id) {
  const thumbs = [...box.querySelectorAll("[data-reward]")], words = box.querySelector("input"), state = box.querySelector("output");
  let reward = null;
  for (const thumb of thumbs) thumb.addEventListener("click", () => {
    reward = reward === +thumb.dataset.reward ? null : +thumb.dataset.reward;
    for (const each of thumbs) each.setAttribute("aria-pressed", String(reward === +each.dataset.reward));
  });
  box.addEventListener("submit", async (event) => {
    event.preventDefault();
    const text = words.value.trim();
    if (reward === null && !text) { state.textContent = "Choose a thumb, or say what was wrong."; return; }
    const body = { response_id: id };
    if (reward !== null) body.reward = reward;
    if (text) body.text = text;
    state.textContent = "sending …";
    try {
      const found = await (await post("/dashboard/feedback", body)).json();
      state.textContent = `Stored. ${found.note ?? ""}`;
      await refresh();
    } catch (error) { state.textContent = `Not stored: ${error.message}`; }
  });
  box.hidden = false;
}

async function ask(words) {
  const added = turn.content.cloneNode(true).firstElementChild, [before, after] = added.querySelectorAll(".side");
  const system = document.getElementById("system").value.trim();
  const messages = [...(system ? [{ role: "system", content: system }] : []), ...said, { role: "user", content: words }];
  added.querySelector(".asked").textContent = words;
  before.hidden = !beside.value;
  talk.append(added);
  added.scrollIntoView({ block: "nearest" });
  talk.setAttribute("aria-busy", "true");
  const options = beside.value ? { temperature: 0 } : {};  // so that only the weights differ
  const live = reply(model, messages, options, after);
  const both = [live, ...(beside.value ? [reply(`${model}@${beside.value}`, messages, { ...options, store: false }, before)] : [])];
  const failed = (await Promise.allSettled(both)).filter((each) => each.reason).map((each) => each.reason.message);
  added.querySelector("[role=alert]").textContent = failed.join(" ");
  talk.setAttribute("aria-busy", "false");
  try {
    const found = await live;
    said.push({ role: "user", content: words }, { role: "assistant", content: found.text });
    teach(added.querySelector("form"), found.id);
  } catch { prompt_.value = words; /* shown above; the words are not lost */ }
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const words = prompt_.value.trim(), button = form.querySelector("button.main");
  if (!words || button.disabled) return;
  prompt_.value = "";
  button.disabled = true;
  try { await ask(words); } finally { button.disabled = false; }
  await refresh();
});
prompt_.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  form.requestSubmit();
});
document.getElementById("again").addEventListener("click", () => { said = []; talk.replaceChildren(); prompt_.focus(); });

// The versions that a reply can stand beside: those of the table.
function offer() {
  const chosen = beside.value, names = [...document.querySelectorAll("#main tr[data-version]")].map((row) => row.dataset.version);
  const options = [["", "nothing"], ["base", "the base model"], ...names.map((name) => [name, `version ${name}`])];
  beside.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
  beside.value = options.some(([value]) => value === chosen) ? chosen : "";
}

async function refresh() {
  const main = document.getElementById("main");
  if (document.hidden || getSelection().toString() || main.contains(document.activeElement)) return;
  try {
    const answer = await fetch("/dashboard" + location.search);
    if (!answer.ok) return;
    const page = await answer.text(), fresh = document.createElement("template");
    fresh.innerHTML = page.slice(page.indexOf("<main"), page.indexOf("</main>"));  // styles, scripts and the chat stay as they are
    const places = [...main.querySelectorAll(".scroll")].map((each) => each.scrollTop);
    main.replaceWith(fresh.content);
    document.querySelectorAll("#main .scroll").forEach((each, i) => { each.scrollTop = places[i] ?? 0; });
    if (document.activeElement !== beside) offer();
  } catch { /* the server does not answer; the next try may succeed */ }
}

offer();
setInterval(refresh, 5000);
