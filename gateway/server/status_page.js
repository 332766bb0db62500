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
  const answer = await ask(path).catch(() => null);
  if (!answer) return refresh();
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
let refreshing = false;
async function refresh() {
  if (refreshing) return;
  refreshing = true;
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
  } finally {
    refreshing = false;
  }
}
at("more").onclick = () => { pages += 1; load().catch(() => refresh()); };
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
