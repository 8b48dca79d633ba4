// Edits of a drawing's text by the mouse: the text stays the source, with its comments and line breaks.
const ARROW = /\s*((?:-->|-\.->)(?:\|[^|]*\|)?)\s*/;
const DRAWN = /^\s*[\w.+-]+(?:\[.*?\]|\(.*?\)|\{.*?\})?\s*(?:-->|-\.->)/;

/** The name of a box as it stands in a line, without the text in its brackets. */
const idOf = (box) => box.match(/^[\w.+-]+/)?.[0];

/** Change the chains of a text, line by line. `change` gets [box, arrow, box, …], and returns chains of that form. */
function rewrite(text, change) {
  return text.split("\n").flatMap((line) => {
    if (!DRAWN.test(line)) return [line];
    const chain = line.trim().split(ARROW), chains = change(chain);
    if (chains.length === 1 && chains[0].join("\n") === chain.join("\n")) return [line];
    return chains.filter((one) => one.length > 2).map((one) => `${line.match(/^\s*/)[0]}${one.join(" ").replaceAll("> |", ">|")}`);
  }).join("\n");
}

export const addArrow = (text, from, to) => `${text.trimEnd()}\n  ${from} --> ${to}\n`;

/** Without the arrows from one box to another. */
export function removeArrow(text, from, to) {
  return rewrite(text, (chain) => {
    const chains = [[chain[0]]];
    for (let i = 1; i < chain.length; i += 2) {
      if (idOf(chain[i - 1]) === from && idOf(chain[i + 1]) === to) chains.push([chain[i + 1]]);
      else chains.at(-1).push(chain[i], chain[i + 1]);
    }
    return chains;
  });
}

/** With a box put into the arrow from one box to another; the arrow's label stays before it. */
export function putInto(text, name, from, to) {
  return rewrite(text, (chain) => [chain.flatMap((part, i) => (i % 2 && idOf(chain[i - 1]) === from && idOf(chain[i + 1]) === to ? [part, name, "-->"] : [part]))]);
}

/** With a box put behind another: into the first plain arrow that leaves it, else with an arrow of its own. */
export function putBehind(text, name, place) {
  let done = false;
  const put = rewrite(text, (chain) => [chain.flatMap((part, i) => {
    if (done || part !== "-->" || idOf(chain[i - 1]) !== place) return [part];
    done = true;
    return ["-->", name, "-->"];
  })]);
  return done ? put : addArrow(addArrow(text, place, name), name, "END");
}

/** Without a box: what led to it leads on to where its first arrow went. */
export function takeOut(text, name) {
  let next = "END", known = false;
  rewrite(text, (chain) => {
    chain.forEach((part, i) => {
      if (!known && !(i % 2) && idOf(part) === name && i + 2 < chain.length) [next, known] = [chain[i + 2], true];
    });
    return [chain];
  });
  return rewrite(text, (chain) => {
    const kept = [...chain];
    while (kept.length > 1 && idOf(kept[0]) === name) kept.splice(0, 2);
    for (let i = 2; i < kept.length; i += 2) {
      if (idOf(kept[i]) !== name) continue;
      if (i + 2 < kept.length) kept.splice(i, 2);
      else kept[i] = idOf(next);
      i -= 2;
    }
    return [kept];
  });
}
