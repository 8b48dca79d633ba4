// Curves and bars as small pictures, and numbers and times in few characters.
const { html } = viewLibrary;

const MOST_POINTS = 120, LEFT = 44, RIGHT = 312, TOP = 10, BOTTOM = 104;

/** A number in a few characters; a dash for none. */
export function short(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return "–";
  return Number.isInteger(value) && Math.abs(value) < 1e6 ? String(value) : String(+value.toPrecision(3));
}

/** The time since a Unix time, in words. */
export function since(time, now = Date.now() / 1000) {
  const seconds = Math.max(0, now - time);
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]]) if (seconds >= length) return `${(seconds / length).toFixed(0)} ${unit} ago`;
  return `${seconds.toFixed(0)} s ago`;
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

/** `rows` with a `step` and a number `name`; more than 120 are averaged in groups. `axis`: what a step is. */
export function Curve({ title, unit, rows, name, axis = "step" }) {
  const points = rows.filter((row) => Number.isFinite(row[name])).map((row) => [row.step, row[name]]).sort((a, b) => a[0] - b[0]);
  const head = html`<div class="head"><b>${title}</b><span class="value">${points.length ? short(points.at(-1)[1]) : "–"}</span></div><span class="soft">${unit}</span>`;
  if (!points.length) return html`<div class="card">${head}<p class="soft">no ${axis} yet</p></div>`;
  const size = Math.ceil(points.length / MOST_POINTS), thin = [];
  for (let i = 0; i < points.length; i += size) thin.push([points[Math.min(i + size, points.length) - 1][0], mean(points.slice(i, i + size).map((point) => point[1]))]);
  let [low, high] = [Math.min(...thin.map((point) => point[1])), Math.max(...thin.map((point) => point[1]))];
  if (high - low < 1e-9 * Math.max(1, Math.abs(low), Math.abs(high))) [low, high] = [low - Math.max(Math.abs(low), 1) * 0.1, high + Math.max(Math.abs(high), 1) * 0.1];
  const [first, last] = [thin[0][0], thin.at(-1)[0]];
  const places = thin.map(([step, value]) => [LEFT + (RIGHT - LEFT) * (last > first ? (step - first) / (last - first) : 0.5), BOTTOM - (BOTTOM - TOP) * (value - low) / (high - low)]);
  return html`<div class="card">${head}<svg class="curve" viewBox="0 0 320 128" role="img" aria-label=${`${title} by ${axis}`}>
    ${[0, 0.5, 1].map((share) => html`<line x1=${LEFT} x2=${RIGHT} y1=${BOTTOM - (BOTTOM - TOP) * share} y2=${BOTTOM - (BOTTOM - TOP) * share}/>
      <text x=${LEFT - 6} y=${BOTTOM - (BOTTOM - TOP) * share} text-anchor="end" dominant-baseline="middle">${+(low + (high - low) * share).toPrecision(2)}</text>`)}
    <text x=${LEFT} y="122">${axis} ${short(first)}</text><text x=${RIGHT} y="122" text-anchor="end">${short(last)}</text>
    <polyline points=${places.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ")}/>
    ${places.map(([x, y], i) => html`<circle cx=${x} cy=${y} r=${i === places.length - 1 ? 3 : 4} class=${i === places.length - 1 ? "last" : ""}><title>${`${axis} ${short(thin[i][0])}: ${short(thin[i][1])}`}</title></circle>`)}
  </svg></div>`;
}

/** Names with their counts, as bars. */
export function Bars({ title, counts, empty }) {
  const most = Math.max(1, ...counts.map(([, count]) => count));
  return html`<div class="card"><b>${title}</b>${counts.length === 0 && html`<p class="soft">${empty}</p>`}
    <table class="bars"><tbody>${counts.map(([name, count]) => html`<tr><th scope="row">${name}</th><td class="pair"><i style=${{ width: `${100 * count / most}%` }}></i></td><td>${short(count)}</td></tr>`)}</tbody></table></div>`;
}

/** Counts by age, {age: count}, in at most 12 groups. */
export function ageGroups(ages, most = 12) {
  const known = Object.keys(ages).map(Number), size = Math.ceil((Math.max(0, ...known) + 1) / most), groups = new Map();
  if (!known.length) return [];
  for (let group = 0; group <= Math.floor(Math.max(...known) / size); group += 1) groups.set(group, 0);
  for (const age of known) groups.set(Math.floor(age / size), groups.get(Math.floor(age / size)) + ages[age]);
  return [...groups].map(([group, count]) => [size === 1 ? `${group}` : `${group * size}–${group * size + size - 1}`, count]);
}
