// The run view as a notebook widget (anywidget): questions go to the kernel by messages. Keys work while the focus is inside.
import { RunView } from "./run_view.js";

const { html, render } = viewLibrary;

function makeAsk(model) {
  const waiting = new Map();
  let number = 0;
  model.on("msg:custom", ({ number: answered, found, error, details }) => {
    const { done, fail } = waiting.get(answered) ?? {};
    waiting.delete(answered);
    if (error === undefined) done?.(found);
    else fail?.(Object.assign(new Error(error), { details }));
  });
  return (name, args = {}) => new Promise((done, fail) => {
    number += 1;
    const mine = `${Math.random()} ${number}`;  // several views of one model hear the same answers
    waiting.set(mine, { done, fail });
    model.send({ number: mine, name, args });
  });
}

/** Keeps the focus in the view when a redraw hides, disables or takes away what has it: JupyterLab gives it to a cell, and the next key would be a command there (`d d` deletes the cell). Returns a function that ends that. */
function keepFocus(el) {
  const isUsable = (one) => !one.disabled && one.checkVisibility();
  let holder = null;
  const follow = async ({ target }) => {
    if (el.contains(target)) { holder = target; return; }
    await null;  // an element that is being taken away loses the focus while it is still there
    if (holder && isUsable(holder) && !el.contains(document.activeElement)) holder = null;  // the user has left
  };
  const watcher = new MutationObserver(() => { if (holder && !isUsable(holder)) el.querySelector("section.run")?.focus({ preventScroll: true }); });
  watcher.observe(el, { subtree: true, childList: true, attributeFilter: ["disabled", "hidden", "open"] });
  addEventListener("focusin", follow, true);
  return () => { watcher.disconnect(); removeEventListener("focusin", follow, true); };
}

function draw({ model, el }) {
  el.classList.add("studio");
  // Or a key pressed in here would also be a command of JupyterLab, which asks the element that has the focus, and its parents only after it.
  const keep = ({ target }) => { if (el.contains(target)) target.dataset.lmSuppressShortcuts = "true"; };
  addEventListener("keydown", keep, true);
  const leave = keepFocus(el);
  render(html`<${RunView} ask=${makeAsk(model)} view=${model.get("view")} shortcuts="inside" wait=${2000}/>`, el);
  return () => { leave(); removeEventListener("keydown", keep, true); render(null, el); };
}

export const widget = { render: draw };
