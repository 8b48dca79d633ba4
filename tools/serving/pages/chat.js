// A conversation: what was said, what is being written, and a box to say more.
const { html, useEffect, useRef, useState } = viewLibrary;
import { markdown } from "./markdown.js";

export function Said({ item }) {
  const { from, text, images, calls } = item.message;
  return html`<div class=${`said ${from}`}><b class="from">${from}</b>${text && (from === "ai" ? markdown(text) : html`<span>${text}</span>`)}${images.map((address) => html`<img src=${address} alt="a picture in the message"/>`)}
    ${calls.map((call) => html`<code class="calls">${call}</code>`)}</div>`;
}

export function Chat({ state, live, act, can, busy }) {
  const [text, setText] = useState(""), list = useRef(null), said = state?.find((value) => value.messages)?.items ?? [];
  useEffect(() => { list.current.scrollTop = list.current.scrollHeight; }, [said.length, live]);
  const send = (event) => {
    event.preventDefault();
    if (text.trim() && can) act("say", { text }).then((isSaid) => isSaid && setText(""));
  };
  return html`<div class="card chat"><h3>Chat</h3><div class="talk" ref=${list} tabindex="0" role="log" aria-label="conversation">${said.map((item, i) => html`<${Said} key=${i} item=${item}/>`)}
      ${live.filter((one) => one.words).map((one) => html`<div class="said ai live"><b class="from">${one.node}</b>${markdown(one.words)}</div>`)}</div>
    <form onSubmit=${send}><textarea rows="2" aria-label="message" placeholder=${can ? "Say something; Enter sends" : "Finish the run, or answer it, before the next turn"} disabled=${busy} value=${text}
      onInput=${(event) => setText(event.currentTarget.value)} onKeyDown=${(event) => event.key === "Enter" && !event.shiftKey && send(event)}></textarea>
      <button class="main" disabled=${busy || !can}>Send</button></form></div>`;
}
