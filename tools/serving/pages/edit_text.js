// Edits of a drawing's text by the mouse: the text stays the source, with its comments and line breaks. What an arrow means stays:
// its label remains before a box that is put into it, and an arrow that its node leads by itself is refused. Refusals are Errors.
const ARROW = /\s*((?:-{2,}>|-\.+->)(?:\s*\|[^|]*\|)?)\s*/;
const BOX = /[\w.+-]+?(?:\[.*?\]|\(.*?\)|\{.*?\})?/.source;
const DRAWN = new RegExp(`^\\s*${BOX}(?:\\s*&\\s*${BOX})*\\s*(?:-{2,}>|-\\.+->)`);

/** The names of a box, or of boxes joined by &, as they stand in a line, without the texts in their brackets. */
const namesOf = (part) => part.split("&").map((one) => one.trim().match(/^[\w.+-]+/)?.[0]);
const labelOf = (arrow) => arrow.match(/\|\s*"?(.*?)"?\s*\|/)?.[1] ?? "";
const said = (edge) => `${edge.source} to ${edge.target}${edge.label ? ` (${edge.label})` : ""}`;

/** Change the chains of a text, line by line. `change` gets [box, arrow, box, …], and returns chains of that form. */
function rewrite(text, change) {
  return text.split("\n").flatMap((line) => {
    if (!DRAWN.test(line)) return [line];
    const chain = line.trim().split(ARROW), chains = change(chain);
    if (chains.length === 1 && chains[0].join("\n") === chain.join("\n")) return [line];
    return chains.filter((one) => one.length > 2).map((one) => `${line.match(/^\s*/)[0]}${one.join(" ")}`);
  }).join("\n");
}

const isArrow = (chain, i, edge) => i % 2 && namesOf(chain[i - 1]).includes(edge.source) && namesOf(chain[i + 1]).includes(edge.target) && labelOf(chain[i]) === edge.label;

/** An arrow that leads to another box: one that means its target's name says it now. */
const named = (arrow, target) => (arrow.startsWith("-.") && !labelOf(arrow) ? `${arrow}|${target === "END" ? "end" : target}|` : arrow);

function changed(text, made) {
  if (made === text) throw new Error("This arrow is written in a form that the mouse does not change; its line in the text can be edited.");
  return made;
}

function refuseBound(edge, name, edges) {
  if (!edge.bound) return;
  const free = edges.filter((one) => !one.bound).map(said);
  throw new Error(`'${edge.source}' leads to '${edge.target}' by itself, past any box in that arrow. ${name} can stand in ${free.length ? `an arrow that only the drawing leads: ${free.slice(0, 6).join("; ")}` : "no arrow of this drawing"}.`);
}

/** The settings of a node stand in a comment of its own; with none, the comment goes. */
export function putSettings(text, name, settings) {
  const isTheirs = (line) => line.trim().startsWith(`%% ${name} {`), made = Object.keys(settings).length ? [`  %% ${name} ${JSON.stringify(settings)}`] : [];
  const lines = text.trimEnd().split("\n");
  return made.length || lines.some(isTheirs) ? `${[...lines.filter((line) => !isTheirs(line)), ...made].join("\n")}\n` : text;
}

export function addArrow(text, from, to) {
  if (from === "END" || to === "START") throw new Error("Nothing leaves END, and nothing enters START.");
  return `${text.trimEnd()}\n  ${from} --> ${to}\n`;
}

export function removeArrow(text, edge) {
  return changed(text, rewrite(text, (chain) => {
    const chains = [[chain[0]]];
    for (let i = 1; i < chain.length; i += 2) {
      if (isArrow(chain, i, edge)) chains.push([chain[i + 1]]);
      else chains.at(-1).push(chain[i], chain[i + 1]);
    }
    return chains;
  }));
}

/** With a box put into an arrow, whose label stays before it. */
export function putInto(text, name, edge, edges) {
  refuseBound(edge, name, edges);
  return changed(text, rewrite(text, (chain) => [chain.flatMap((part, i) => (isArrow(chain, i, edge) ? [named(part, edge.target), name, "-->"] : [part]))]));
}

/** With a box put behind another: what left that one leaves the new box, and an only arrow keeps its label before it. */
export function putBehind(text, name, place, edges) {
  const leaving = edges.filter((edge) => edge.source === place), joint = [[place, "-->", name]];
  if (!leaving.length) return addArrow(addArrow(text, place, name), name, "END");
  if (leaving.length === 1) return putInto(text, name, leaving[0], edges);
  leaving.forEach((edge) => refuseBound(edge, name, edges));
  return changed(text, rewrite(text, (chain) => {
    const chains = [[]];
    chain.forEach((part, i) => {
      chains.at(-1).push(part);
      if (i % 2 || i === chain.length - 1 || !namesOf(part).includes(place)) return;
      const leaves = part.split("&").map((box) => (namesOf(box)[0] === place ? name : box.trim())).join(" & ");
      chains.push(...joint.splice(0), [leaves]);
    });
    return chains;
  }));
}

/** With a box put into the one arrow that enters END. */
export function putLast(text, name, edges) {
  const free = edges.filter((edge) => edge.target === "END" && !edge.bound);
  if (free.length === 1) return putInto(text, name, free[0], edges);
  throw new Error(`Click the box that ${name} is to follow, or the arrow that it is to stand in: ${free.length ? `several lead to the end (${free.map(said).join("; ")})` : "no arrow that the drawing leads enters the end"}.`);
}

/** A line that names a box, and draws no arrow. */
const ALONE = /^\s*(\S+?)\s*(?:\[.*\]|\(.*\)|\{.*\})?\s*;?\s*$/;

/** True if a box stands beside others, joined to them by &, in front of an arrow or behind it. */
function isGrouped(text, name) {
  const parts = text.split("\n").filter((line) => DRAWN.test(line)).flatMap((line) => line.trim().split(ARROW).filter((_, i) => i % 2 === 0));
  return parts.some((part) => part.includes("&") && namesOf(part).includes(name));
}

/** Without a box: what led to it leads on to where its arrow went. null: it is left by other than one plain arrow to another box, or an
 * arrow of its is led by a node itself, waits for several nodes, or is shared with other boxes. */
function takeOut(text, name, edges) {
  const out = edges.filter((one) => one.source === name), around = edges.filter((one) => one.source === name || one.target === name);
  if (out.length !== 1 || out[0].target === name || out[0].label || out[0].dotted || around.some((one) => one.bound || one.join) || isGrouped(text, name)) return null;
  return rewrite(text, (chain) => {
    const kept = [...chain];
    while (kept.length > 1 && namesOf(kept[0])[0] === name) kept.splice(0, 2);
    for (let i = 2; i < kept.length; i += 2) {
      if (namesOf(kept[i])[0] !== name) continue;
      kept[i - 1] = named(kept[i - 1], name);
      if (i + 2 < kept.length) kept.splice(i, 2);
      else kept[i] = out[0].target;
      i -= 2;
    }
    return [kept];
  });
}

/** Without a box and all its arrows; of boxes joined by & the others stay. */
function cutOut(text, name) {
  return rewrite(text, (chain) => {
    const chains = [[]], boxes = chain.map((part, i) => (i % 2 ? part : part.split("&").filter((box) => namesOf(box)[0] !== name).map((box) => box.trim()).join(" & ")));
    boxes.forEach((part, i) => {
      if (part && (i % 2 === 0 || (boxes[i - 1] && boxes[i + 1]))) chains.at(-1).push(part);
      else chains.push([]);
    });
    return chains;
  });
}

/** Without a box: what led to it leads on to where its arrow went; where several lead on, or one with a label, all its arrows go with it. */
export function removeBox(text, name, edges) {
  const made = takeOut(text, name, edges) ?? cutOut(text, name);
  return changed(text, made.split("\n").filter((line) => ALONE.exec(line)?.[1] !== name).join("\n"));
}

/** With a box taken out of its place and put into an arrow. */
export function moveInto(text, name, edge, edges) {
  const made = takeOut(text, name, edges);
  if (made === null) throw new Error(`'${name}' cannot be taken out of its place here: only a box that one plain arrow leaves, and that no node leads to by itself. Its lines in the text can be edited.`);
  const without = changed(text, made);
  refuseBound(edge, name, edges);
  return putInto(without, name, edge, edges);
}
