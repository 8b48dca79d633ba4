// A state as folded tables, and a decision as bars. All texts are strangers' words: they become text nodes only.
const { html } = viewLibrary;

export function Cells({ table }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label="table"><table><thead><tr>${table.head.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
    <tbody>${table.rows.map((row) => html`<tr>${row.map((cell) => html`<td>${cell}</td>`)}</tr>`)}</tbody></table></div>`;
}

/** A named value: its line, and behind it what more there is. `edit`: {form(), begin()} of its place; `edit.at(i)`: that of a message in it. */
export function Value({ value, open = false, edit = null }) {
  const { name, line, text, table, items, more, changed, open: shown } = value;
  const form = edit?.form();
  if (form) return html`<div class="value">${form}</div>`;
  const pen = edit?.begin && html`<button type="button" class="plain pen" aria-label=${`edit ${name}`} title="edit; the walk becomes a what-if" onClick=${(event) => { event.preventDefault(); edit.begin(); }}>✎</button>`;
  const head = html`${pen}<span class="key">${name}</span>${" "}${changed && html`<span class="changed" title="changed by the last step">changed</span>`}<span class="line">${line}</span>`;
  if (text === undefined && !table && !items) return html`<div class="value">${head}</div>`;
  return html`<details class="value" open=${open || shown}><summary>${head}</summary><div class="inner">
    ${text !== undefined && html`<pre>${text}</pre>`}
    ${table && html`<${Cells} table=${table}/>`}
    ${items?.map((item, i) => html`<${Value} value=${item} edit=${value.messages && edit ? edit.at(i) : null}/>`)}
    ${more && html`<p class="soft">and ${more.toLocaleString("en")} more</p>`}
  </div></details>`;
}

export function StateTable({ state, edit = null }) {
  if (!state.length) return html`<p class="soft">The state is empty.</p>`;
  return state.map((value) => html`<${Value} key=${value.name} value=${value} edit=${edit?.(value.name)}/>`);
}

const number = (value) => (Math.abs(value) >= 1e4 || (value && Math.abs(value) < 1e-3) ? value.toExponential(1) : String(+value.toPrecision(3)));
const percent = (share) => `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;

/** Candidates with logits and probabilities; grey: without memory, blue: with it. */
export function Decision({ decision }) {
  const { bars, chosen, has_prior } = decision, values = bars.flatMap((bar) => [bar.logit, bar.prior]);
  const low = Math.min(...values), span = Math.max(...values) - low || 1, share = (logit) => 4 + 96 * (logit - low) / span;
  return html`<table class="bars"><caption class="sr">Candidates with their logits and probabilities</caption>
    <thead><tr><th scope="col">action</th><th scope="col">logit, nats</th><th scope="col">probability</th></tr></thead>
    <tbody>${bars.map((bar) => html`<tr key=${bar.action} class=${bar.action === chosen ? "chosen" : ""}>
      <th scope="row">${bar.action}${bar.source === "memory" ? html` <span class="tag">memory</span>` : ""}${bar.action === chosen ? html` <span class="tag on">chosen</span>` : ""}</th>
      <td><div class="pair">${has_prior && html`<i class="old" style=${{ width: `${share(bar.prior)}%` }}></i>`}<i style=${{ width: `${share(bar.logit)}%` }}></i></div>
        <span class="figures">${has_prior && bar.prior !== bar.logit ? `${number(bar.prior)} → ` : ""}${number(bar.logit)}</span></td>
      <td><div class="pair">${has_prior && html`<i class="old" style=${{ width: `${100 * bar.prior_chance}%` }}></i>`}<i style=${{ width: `${100 * bar.chance}%` }}></i></div>
        <span class="figures">${has_prior && bar.prior_chance !== bar.chance ? `${percent(bar.prior_chance)} → ` : ""}${percent(bar.chance)}</span></td>
    </tr>`)}</tbody></table>
    ${has_prior && html`<p class="soft key-of-bars"><i class="old"></i> policy alone <i></i> with memory</p>`}`;
}

export function Explanation({ found }) {
  return html`<div class="explained">${found.sentences.map((sentence) => html`<p>${sentence}</p>`)}
    ${found.tables.map((table) => html`<h4>${table.title}</h4><${Cells} table=${table}/>`)}</div>`;
}

export function Memory({ memory }) {
  return html`${memory.read.length > 0 && html`<h4>read</h4>${memory.read.map((value) => html`<${Value} key=${value.name} value=${value} open=${true}/>`)}`}
    ${memory.written.length > 0 && html`<h4>written</h4>${memory.written.map((item) => (typeof item === "string" ? html`<p>${item}</p>` : html`<${Value} value=${item} open=${true}/>`))}`}`;
}
