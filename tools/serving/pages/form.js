// A form from a JSON schema and a value: a field for what the schema names, JSON for the rest.
const { html, useEffect, useRef, useState } = viewLibrary;

function resolve(schema, root) {
  const found = schema?.$ref ? schema.$ref.slice(2).split("/").reduce((part, key) => part?.[key], root) : schema ?? {};
  const kinds = (found?.anyOf ?? []).filter((one) => one.type !== "null");
  return kinds.length === 1 ? { ...resolve(kinds[0], root), ...found, anyOf: undefined } : found ?? {};
}

const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

function Json({ id, value, set }) {
  const [text, setText] = useState(() => JSON.stringify(value ?? null, null, 1));
  const write = (event) => {
    setText(event.currentTarget.value);
    try {
      set(JSON.parse(event.currentTarget.value));
      event.currentTarget.setCustomValidity("");
    } catch (error) { event.currentTarget.setCustomValidity(`This is no JSON: ${error.message}`); }
  };
  return html`<textarea id=${id} rows=${Math.min(12, text.split("\n").length)} value=${text} onInput=${write}></textarea>`;
}

/** It keeps the text that is typed: of `0.0` on the way to `0.05` the number alone is 0. */
function NumberInput({ id, step, value, set, needed }) {
  const [text, setText] = useState(""), read = (words) => (words === "" ? null : +words);
  const write = (event) => { setText(event.currentTarget.value); set(read(event.currentTarget.value)); };
  return html`<input id=${id} type="number" ref=${(box) => box?.setCustomValidity(needed && box.value === "" ? needed : "")} step=${step} value=${read(text) === (value ?? null) ? text : String(value)} onInput=${write}/>`;
}

const isNumber = (schema) => schema.type === "number" || schema.type === "integer";

/** `needed`: what is said of the field while it is empty and cannot be: a required number, or what is required and was given no value. */
function Field({ id, name, schema, root, value, set, needed = "" }) {
  const [was] = useState(value), lacks = (key, part) => (is.required ?? []).includes(key) && (was?.[key] === undefined || isNumber(part));
  const is = resolve(schema, root), label = name;
  const group = (parts) => html`<fieldset>${label && html`<legend>${label}</legend>`}${parts}</fieldset>`;
  const inside = (key, part, found, write) => html`<${Field} key=${key} id=${`${id}-${key}`} name=${part.title ?? String(key)} schema=${part} root=${root} value=${found} set=${write} needed=${lacks(key, part) ? `${key} is required` : ""}/>`;
  const replaced = (i, made) => value.map((old, n) => (n === i ? made : old));
  const put = (key, part, made) => {
    const changed = { ...value, [key]: made };
    if (made === null && isNumber(part) && !is.required?.includes(key)) delete changed[key];  // an optional number that was emptied is not given
    return changed;
  };
  const isFor = ([, part]) => !part.only_for || part.only_for.includes(value?.type);
  if (is.properties) return group(Object.entries(is.properties).filter(isFor).map(([key, part]) => inside(key, { ...part, title: is.required?.includes(key) ? `${key} (required)` : key }, value?.[key], (made) => set(put(key, part, made)))));
  if (is.prefixItems) return group(is.prefixItems.map((part, i) => inside(i, part, value[i], (made) => set(replaced(i, made)))));
  if (is.type === "array" && is.items && (value ?? []).length < 100) {
    return group(html`${(value ?? []).map((found, i) => html`<div class="item">${inside(i, { ...is.items, title: undefined }, found, (made) => set(replaced(i, made)))}
        <button type="button" aria-label=${`remove ${i}`} onClick=${() => set(value.filter((_, n) => n !== i))}>−</button></div>`)}
      <button type="button" onClick=${() => set([...(value ?? []), resolve(is.items, root).type === "string" ? "" : null])}>+</button>`);
  }
  const usual = schema.default !== undefined && `default: ${JSON.stringify(schema.default)}`;
  const told = [is.description || (usual && is.type), usual && (same(schema.default, value) ? usual : html`<b>${usual}</b>`)].filter(Boolean);
  const about = told.length > 0 && html`<span class="soft"> ${told[0]} ${told[1]}</span>`;
  const choices = is.enum && (is.enum.includes(value) ? is.enum : [undefined, ...is.enum]);
  const field = is.enum ? html`<select id=${id} ref=${(box) => box?.setCustomValidity(value === undefined ? needed : "")} value=${value} onChange=${(event) => set(choices[event.currentTarget.selectedIndex])}>${choices.map((one) => html`<option selected=${one === value}>${one === undefined ? "not set" : String(one)}</option>`)}</select>`
    : is.type === "boolean" ? html`<input id=${id} type="checkbox" checked=${value} onChange=${(event) => set(event.currentTarget.checked)}/>`
    : isNumber(is) ? html`<${NumberInput} id=${id} step=${is.type === "integer" ? 1 : "any"} value=${value} set=${set} needed=${needed}/>`
    : is.type === "string" && typeof (value ?? "") === "string" ? html`<textarea id=${id} ref=${(box) => box?.setCustomValidity(box.value.trim() ? "" : needed)} rows=${Math.min(10, Math.ceil((value ?? "").length / 60) || 1)} value=${value ?? ""} onInput=${(event) => set(event.currentTarget.value)}></textarea>`
    : html`<${Json} id=${id} value=${value} set=${set}/>`;
  return html`<div class="field">${label && html`<label for=${id}>${label}</label>`}${about}${field}</div>`;
}

let forms = 0;

/** `submit(value)`, by the button, Enter in a field of one line, or Ctrl+Enter; Escape and Cancel call `close`. What is typed stays in `form.typed`: until then it has none. */
export function Form({ form, title, button = "Write", submit, close = null, about = null, takesFocus = true }) {
  const [value, setValue] = useState("typed" in form ? form.typed : form.value), [id] = useState(() => `form${(forms += 1)}`), box = useRef(null);
  useEffect(() => {  // but not while another form has the focus; nor in a notebook, where the next key is meant for a cell, unless the user works in the view
    const active = box.current.getRootNode().activeElement, cell = box.current.closest("section.run[tabindex]");
    if (takesFocus && !active?.closest("form.ask") && (!cell || cell.contains(active))) box.current.querySelector("textarea, input, select")?.focus({ preventScroll: true });
  }, []);
  const type = (typed) => { form.typed = typed; setValue(typed); };
  const press = (event) => {
    if (event.key === "Escape" && close) close();
    const isLine = (event.target.rows === 1 || event.target.tagName === "INPUT") && !event.shiftKey && !event.isComposing;  // JupyterLab lets no field submit by itself
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey || isLine)) { event.preventDefault(); box.current.requestSubmit(); }
  };
  return html`<form class=${form.title ? "ask settings" : "ask"} ref=${box} onSubmit=${(event) => { event.preventDefault(); submit(value); }} onKeyDown=${press} onInput=${() => "typed" in form || type(value)}>
    ${title && html`<p><b>${title}</b></p>`}${about}<${Field} id=${id} schema=${form.schema} root=${form.schema} value=${value} set=${type} needed=${form.needed}/>
    <div class="toolbar"><button class="main">${button}</button>${close && html`<button type="button" onClick=${close}>Cancel</button>`}<span class="soft">Enter, or Ctrl+Enter in a longer field; Shift+Enter breaks the line</span></div></form>`;
}
