// Questions to the server. The key comes with the link that the command printed; it stays in this browser, and travels in a header.
const STORED = "learngraph-studio-key";
const given = new URLSearchParams(location.hash.slice(1)).get("key");
if (given) {
  localStorage.setItem(STORED, given);
  history.replaceState(null, "", location.pathname);
}

/** The answer to a question. Throws an Error with the server's sentence; its `details` hold what came with it. `isLost`: no server answered. */
export async function ask(name, args = {}) {
  const headers = { "content-type": "application/json", "x-studio-key": localStorage.getItem(STORED) ?? "" };
  let answer;
  try {
    answer = await fetch(`/ask/${name}`, { method: "POST", headers, body: JSON.stringify(args) });
  } catch {
    throw Object.assign(new Error("The studio does not answer: has its command ended? Start it again and open the link that it prints; with the same key (LEARNGRAPH_STUDIO_KEY) and --port, this page goes on by itself."), { isLost: true });
  }
  const found = await answer.json();
  if (answer.ok && found?.error === undefined) return found;
  throw Object.assign(new Error(found.error), { details: found, status: answer.status });
}
