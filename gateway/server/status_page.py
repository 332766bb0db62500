"""The status page: one self-contained HTML document.

A key entered in the page stays there: the page sends it as a header and never shows it. So the page itself fetches and
shows links that need a key. The commands of the quick start take the key from the shell's environment.
"""

from __future__ import annotations

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"

HTML = r"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>topics</title>
<link rel="icon" href="data:,">
<style>
  :root { color-scheme: light dark; --ink: #1c2330; --soft: #667085; --line: #e4e7ec; --paper: #fff; --card: #f8f9fb;
          --good: #12805c; --bad: #b42318; --accent: #3457d5; }
  @media (prefers-color-scheme: dark) {
    :root { --ink: #e6e9ef; --soft: #98a2b3; --line: #2b3240; --paper: #11151c; --card: #181d26; --good: #3ccb97;
            --bad: #f97066; --accent: #8ea6ff; }
  }
  * { box-sizing: border-box; }
  body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.55 system-ui, sans-serif; }
  main { max-width: 60rem; margin: 0 auto; padding: 3rem 1.5rem 4rem; }
  header { display: flex; align-items: baseline; gap: 1rem; flex-wrap: wrap; }
  h1 { font-size: 2rem; letter-spacing: -.02em; margin: 0; }
  h2 { font-size: 1rem; margin: 2.5rem 0 .75rem; }
  .soft, th { color: var(--soft); }
  #state { padding: .1rem .7rem; border-radius: 1rem; border: 1px solid currentColor; font-size: .85rem; }
  .good { color: var(--good); } .bad { color: var(--bad); }
  .cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: 1rem; margin-top: 1.5rem; }
  .card { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: .8rem 1rem; }
  .card b { display: block; font-size: 1.5rem; font-variant-numeric: tabular-nums; }
  table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
  th { font-weight: 500; font-size: .85rem; text-align: left; }
  th, td { padding: .45rem .5rem; border-bottom: 1px solid var(--line); }
  td:not(:first-child), th:not(:first-child) { text-align: right; }
  td:not(:first-child) { white-space: nowrap; }
  td:first-child { font-family: ui-monospace, monospace; }
  .wide { overflow-x: auto; }
  p { overflow-wrap: break-word; }
  pre { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: 1rem; overflow-x: auto;
        font: 13px/1.6 ui-monospace, monospace; margin: 0; }
  a { color: var(--accent); }
  button { font: inherit; color: var(--accent); background: none; border: 1px solid var(--line); border-radius: .4rem;
           padding: .3rem .9rem; margin-top: .8rem; cursor: pointer; }
</style>
</head>
<body>
<main>
  <header>
    <h1>topics</h1><span id="state" class="soft" role="status">asking…</span><span id="why" class="soft"></span>
  </header>
  <form id="asking" hidden>
    <label>This service asks for a key: <input id="key" type="password" autocomplete="off" size="40"></label>
    <button>show</button>
    <p id="refused" class="bad" role="alert" hidden></p>
  </form>
  <div class="cards">
    <div class="card"><span class="soft">topics</span><b id="topics">–</b></div>
    <div class="card"><span class="soft">live records</span><b id="records">–</b></div>
    <div class="card"><span class="soft">live bytes</span><b id="bytes">–</b></div>
    <div class="card"><span class="soft">up for</span><b id="uptime">–</b></div>
  </div>
  <h2>Topics</h2>
  <div class="wide"><table>
    <thead><tr><th>name</th><th>head</th><th>earliest</th><th>records</th><th>bytes</th></tr></thead>
    <tbody id="rows"><tr><td colspan="5" class="soft">asking…</td></tr></tbody>
  </table></div>
  <button id="more" hidden>more</button>
  <h2>Quick start</h2>
  <pre id="start"></pre>
  <p class="soft" id="links"><a href="/v0/openapi.json">OpenAPI</a> · <a href="/v0/metrics">metrics</a> ·
    <a href="/v0/health">health</a> · <a href="/v0/ready">ready</a></p>
  <pre id="shown" hidden></pre>
</main>
<script>
const at = id => document.getElementById(id);
const whole = n => Number(n).toLocaleString("en");
function size(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) { n /= 1024; unit += 1; }
  return (unit ? n.toFixed(1) : n) + " " + units[unit];
}
function span(ms) {
  const s = Math.floor(ms / 1000);
  if (s < 60) return s + " s";
  if (s < 3600) return Math.floor(s / 60) + " min";
  if (s < 172800) return Math.floor(s / 3600) + " h";
  return Math.floor(s / 86400) + " d";
}
let next = null, pages = 1;
// Kept in this page only, and sent as a header: never in an address, a cookie or a store.
let key = "", keyed = false;
const ask = (path, headers = {}) =>
  fetch(path, {headers: key ? {...headers, authorization: "Bearer " + key} : headers});
at("asking").onsubmit = event => { event.preventDefault(); key = at("key").value.trim(); refresh(); };
async function admitted(answer) {
  const refused = answer.status === 401 || answer.status === 403;
  if (answer.ok || refused) at("asking").hidden = !refused;
  if (refused && !keyed) { keyed = true; start(); }
  at("refused").hidden = !(refused && key);
  if (refused && key) {
    const said = (await answer.json()).error.message;
    at("refused").textContent = (answer.status === 401 ? "This key is wrong: " : "This key may not do that: ") + said;
  }
  return answer.ok;
}
at("links").onclick = async event => {
  const path = event.target.getAttribute("href");
  if (!path || !keyed) return;
  event.preventDefault();
  const answer = await ask(path);
  const text = await answer.text();
  at("shown").hidden = false;
  at("shown").textContent = text;
  await admitted(new Response(text, {status: answer.status}));
};
// A name may be broken behind what separates its parts, and nowhere else.
function named(cell, name) {
  for (const part of name.split(/(?<=[:._-])/)) cell.append(part, document.createElement("wbr"));
}
async function load() {
  const entries = [];
  let cursor = null;
  for (let page = 0; page < pages; page += 1) {
    const query = new URLSearchParams({page_size: "100"});
    if (cursor) query.set("cursor", cursor);
    const answer = await ask("/v0/topics?" + query);
    if (!await admitted(answer)) return;
    const list = await answer.json();
    entries.push(...list.topics);
    cursor = list.next_cursor ?? null;
    if (!cursor) break;
  }
  next = cursor;
  const rows = entries.map(t => {
    const row = document.createElement("tr");
    named(row.appendChild(document.createElement("td")), t.topic);
    for (const value of [whole(t.head_seq), whole(t.earliest_seq), whole(t.count), size(t.bytes)])
      row.appendChild(document.createElement("td")).textContent = value;
    return row;
  });
  if (!rows.length) {
    const row = document.createElement("tr");
    const cell = row.appendChild(document.createElement("td"));
    cell.colSpan = 5; cell.className = "soft"; cell.textContent = "none yet; the lines below make one";
    rows.push(row);
  }
  at("rows").replaceChildren(...rows);
  at("more").hidden = !next;
}
async function refresh() {
  try {
    const ready = await ask("/v0/ready");
    const body = await ready.json();
    at("state").className = ready.ok ? "good" : "bad";
    at("state").textContent = ready.ok ? "ready" : body.error.code.replace("_", " ");
    const progress = body.error?.detail?.replay_progress;
    at("why").textContent = progress === undefined ? "" : Math.floor(progress * 100) + " % replayed";
    const answer = await ask("/v0/metrics", {accept: "application/json"});
    if (await admitted(answer)) {
      const metrics = await answer.json();
      at("topics").textContent = whole(metrics.topics_topics);
      at("records").textContent = whole(metrics.topics_records_live);
      at("bytes").textContent = size(metrics.topics_bytes_live);
      at("uptime").textContent = span(metrics.topics_uptime_ms);
    }
    if (ready.ok) await load();
  } catch (error) {
    at("state").className = "bad";
    at("state").textContent = "unreachable";
  }
}
at("more").onclick = () => { pages += 1; load(); };
function start() {
  const more = keyed ? ` \\
  -H "Authorization: Bearer $TOPICS_TOKEN"` : "";
  const json = ` \\
  -H 'Content-Type: application/json'${more} \\
  -d `;
  const jobs = location.origin + "/v0/topics/jobs";
  at("start").textContent = `${keyed ? "# export TOPICS_TOKEN=...   your key\n\n" : ""}curl ${jobs}${json}\
'{"records": [{"data": {"hello": "world"}, "tag": "first"}]}'

curl ${jobs}/diff${json}'{"from_seq": 0, "include_tags": true}'

curl ${jobs}${more}`;
}
start();
refresh();
setInterval(refresh, 5000);
</script>
</body>
</html>
"""
