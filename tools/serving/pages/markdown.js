// A model's words, which are often Markdown: paragraphs, headings, lists, tables, quotes, code, bold, italics and links. All else stays as it is written,
// and becomes text nodes: tags in it are never read.
const { html } = viewLibrary;

const CODE = /(`+)(.+?)\1(?!`)/, BOLD = /\*\*(?=\S)(.+?\S|\S)\*\*/, LINK = /\[([^\][\n]+)\]\(((?:https?:\/\/|mailto:)[^\s()]+)\)/, BARE = /(https?:\/\/[^\s<>()[\]]*[^\s<>()[\].,;:!?'"*])/, ITALICS = /(?<![\w*])\*(?=[^\s*])([^*\n]*?[^\s*])\*(?![\w*])/;
const INLINE = new RegExp([CODE, BOLD, LINK, BARE, ITALICS].map((one) => one.source).join("|"), "s");

/** The parts of a line of text: a part is a text, or an element. */
function inline(text) {
  const parts = [];
  let rest = text, found;
  while ((found = INLINE.exec(rest)) !== null) {
    const [all, , code, bold, label, named, bare, italics] = found, address = named ?? bare;
    const made = code !== undefined ? html`<code>${code}</code>` : bold !== undefined ? html`<strong>${inline(bold)}</strong>`
      : address !== undefined ? html`<a href=${address} target="_blank" rel="noopener noreferrer">${bare ?? inline(label)}</a>` : html`<em>${inline(italics)}</em>`;
    parts.push(rest.slice(0, found.index), made);
    rest = rest.slice(found.index + all.length);  // it is read as a text that begins here: `**a***b*` is bold and italic
  }
  return [...parts, rest].filter((part) => part !== "");
}

const FENCE = /^\s*(`{3,}|~{3,})/, HEADING = /^#{1,6}\s+(.*?)[\s#]*$/, ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/, indentOf = (line) => line.match(/^\s*/)[0].length;

/** The lines of a list's items, each without its mark and its indent; and the number of lines that they take. */
function readItems(lines) {
  const [, indent, mark] = ITEM.exec(lines[0]), within = new RegExp(`^\\s{1,${indent.length + mark.length + 1}}`), items = [];
  let i = 0;
  for (; i < lines.length; i += 1) {
    const item = ITEM.exec(lines[i]), next = lines.slice(i).find((line) => line.trim());
    if (item && item[1].length <= indent.length) {
      if (/\d/.test(item[2]) !== /\d/.test(mark)) break;
      items.push([item[3]]);
    } else if (next !== undefined && (indentOf(next) > indent.length || (lines[i].trim() === "" && ITEM.test(next)))) items.at(-1).push(lines[i].replace(within, ""));
    else break;
  }
  return { items, start: parseInt(mark, 10), count: i };
}

const RULE = /^\|?(\s*:?-+:?\s*\|)+(\s*:?-+:?\s*)?$/, QUOTE = /^\s{0,3}>\s?/, BAR = /(?<!\\)\|/;

/** True of a line that begins something else than a paragraph. */
const begins = (lines, i) => [FENCE, HEADING, ITEM, QUOTE].some((one) => one.test(lines[i])) || (BAR.test(lines[i]) && RULE.test((lines[i + 1] ?? "").trim()));

/** The cells of a line of a table. */
const cellsOf = (line) => line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "").split(BAR).map((cell) => inline(cell.trim().replaceAll("\\|", "|")));

/** The elements of a text of Markdown, also of one that is still being written. Lists and quotes within each other are read to a depth of 20. */
export function markdown(text, depth = 0) {
  const lines = typeof text === "string" ? text.split("\n") : text, made = [];
  if (depth >= 20) return [html`<p>${inline(lines.join("\n"))}</p>`];
  for (let i = 0; i < lines.length;) {
    const fence = FENCE.exec(lines[i])?.[1], heading = HEADING.exec(lines[i])?.[1];
    if (fence) {
      const end = lines.findIndex((line, n) => n > i && line.trim().startsWith(fence)), last = end < 0 ? lines.length : end;
      made.push(html`<pre>${lines.slice(i + 1, last).join("\n")}</pre>`);
      i = last + 1;
    } else if (heading !== undefined) {
      made.push(html`<p><strong>${inline(heading)}</strong></p>`);
      i += 1;
    } else if (ITEM.test(lines[i])) {
      const { items, start, count } = readItems(lines.slice(i)), parts = items.map((one) => html`<li>${markdown(one, depth + 1)}</li>`);
      made.push(start >= 0 ? html`<ol start=${start}>${parts}</ol>` : html`<ul>${parts}</ul>`);
      i += count;
    } else if (QUOTE.test(lines[i])) {
      const end = lines.findIndex((line, n) => n > i && !QUOTE.test(line)), last = end < 0 ? lines.length : end;
      made.push(html`<blockquote>${markdown(lines.slice(i, last).map((line) => line.replace(QUOTE, "")), depth + 1)}</blockquote>`);
      i = last;
    } else if (begins(lines, i)) {
      const end = lines.findIndex((line, n) => n > i + 1 && !BAR.test(line)), last = end < 0 ? lines.length : end, head = cellsOf(lines[i]);
      const rows = lines.slice(i + 2, last).map((line) => html`<tr>${head.map((_, n) => html`<td>${cellsOf(line)[n]}</td>`)}</tr>`);
      made.push(html`<div class="scroll"><table><thead><tr>${head.map((cell) => html`<th>${cell}</th>`)}</tr></thead><tbody>${rows}</tbody></table></div>`);
      i = last;
    } else if (lines[i].trim() === "") i += 1;
    else {
      const first = i;
      do i += 1; while (i < lines.length && lines[i].trim() && !begins(lines, i));
      made.push(html`<p>${inline(lines.slice(first, i).join("\n"))}</p>`);
    }
  }
  return made;
}
