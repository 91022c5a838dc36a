"use strict";
// Keeps a page up to date, draws its charts, and sends what its buttons ask for. A page is complete without it.

const HEADERS = { "X-Weir-Request": "1" };
const charts = new Map(), seen = new WeakMap();
let wanted = 0, busy = false, lastRefresh = 0;

// live

function refreshSoon() {
  if (wanted) return;
  const wait = Math.max(0, 1000 - (Date.now() - lastRefresh));
  wanted = setTimeout(() => { wanted = 0; refresh(); }, wait);
}

async function refresh() {
  if (busy) { refreshSoon(); return; }
  busy = true;
  lastRefresh = Date.now();
  try {
    const answer = await fetch(location.href, { headers: { ...HEADERS, Accept: "text/html" } });
    if (answer.redirected && new URL(answer.url).pathname === "/login") { location.href = "/login"; return; }
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of document.querySelectorAll("[data-live]")) {
      const other = fresh.getElementById(part.id);
      if (other && !inUse(part)) replace(part, other);
    }
    document.title = fresh.title;
    tick();
    say(true);
  } catch { say(false); } finally { busy = false; }
}

// What somebody types into is left alone.
function inUse(part) {
  const at = document.activeElement;
  const typing = at && part.contains(at) && at.matches("input, textarea, select");
  const changed = [...part.querySelectorAll("input[data-was]")].some((one) => one.value !== one.dataset.was);
  return typing || changed || part.querySelector("dialog[open]");
}

function replace(part, other) {
  const both = (one) => one.querySelectorAll(".chart[data-chart]");
  if (both(part).length && both(part).length === both(other).length) {
    both(other).forEach((fresh) => {
      const shown = document.getElementById(fresh.id);
      if (shown && shown.dataset.chart !== fresh.dataset.chart) { shown.dataset.chart = fresh.dataset.chart; draw(shown); }
    });
    return;
  }
  if (seen.get(part) === other.innerHTML) return;
  seen.set(part, other.innerHTML);
  const open = [...part.querySelectorAll("details")].map((one) => one.open);
  part.className = other.className;
  part.toggleAttribute("data-restless", other.hasAttribute("data-restless"));
  const atEnd = part.scrollTop + part.clientHeight >= part.scrollHeight - 8;
  part.replaceChildren(...document.adoptNode(other).childNodes);
  if ("tail" in part.dataset && atEnd) part.scrollTop = part.scrollHeight; // who reads further up stays there
  const now = part.querySelectorAll("details");
  if (now.length === open.length) now.forEach((one, at) => { one.open = open[at]; });
  part.querySelectorAll(".chart[data-chart]").forEach(draw);
}

function say(up) {
  const sign = document.getElementById("live");
  sign.hidden = false;
  sign.classList.toggle("lost", !up);
  sign.textContent = up ? "live" : "connection lost";
  sign.title = up ? "" : "the process that served this page is gone; 'weir dashboard' serves the history";
}

function listen() {
  const url = document.body.dataset.stream;
  if (url) {
    const events = new EventSource(url);
    for (const kind of ["journal", "batch", "state"]) events.addEventListener(kind, refreshSoon);
    let opened = false;
    events.addEventListener("open", () => { say(true); if (opened) refreshSoon(); opened = true; });
    events.onerror = () => say(false);
    setInterval(refreshSoon, 15000);
    setInterval(() => { if (document.querySelector("[data-restless]")) refreshSoon(); }, 2000); // down: it counts
  } else if (document.body.dataset.poll) {
    setInterval(refreshSoon, Number(document.body.dataset.poll));
  }
}

// times

function lasting(seconds) {
  const s = Math.floor(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return s < 600 ? `${Math.floor(s / 60)} min ${s % 60} s` : `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s % 86400 / 3600)} h`;
}

// One clock for all of a page, texts and charts: the browser's zone, 24 hours; the zone is in the footer.
const two = (number) => String(number).padStart(2, "0");
const clock = (at) => `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
const day = (at) => `${two(at.getMonth() + 1)}-${two(at.getDate())}`;
const moment = (at) => (at.toDateString() === new Date().toDateString() ? clock(at) : `${day(at)} ${clock(at).slice(0, 5)}`);
const zone = () => Intl.DateTimeFormat().resolvedOptions().timeZone;

function tick() {
  for (const one of document.querySelectorAll("time")) {
    const at = new Date(one.dateTime);
    if ("at" in one.dataset) one.textContent = moment(at);
    one.title = `${at.getFullYear()}-${day(at)} ${clock(at)} ${zone()}`;
  }
  document.getElementById("zone").textContent = zone();
  for (const one of document.querySelectorAll("time[data-ago]")) {
    one.textContent = `${lasting(Math.max(0, (Date.now() - Date.parse(one.dateTime)) / 1000))} ago`;
  }
}

// charts

const short = (value, units, step) => {
  let at = 0;
  while (Math.abs(value) >= 999.5 && at < units.length - 1) { value /= step; at += 1; }
  return `${Number(value.toPrecision(3))}${units[at]}`;
};
const UNITS = {
  bytes: (v) => short(v, [" B", " KiB", " MiB", " GiB", " TiB"], 1024),
  rows: (v) => short(v, ["", "k", "M", "G"], 1000),
  s: (v) => (v > 0 && v < 1 ? `${Number((v * 1000).toPrecision(3))} ms` : `${Number(v.toPrecision(3))} s`),
};

const POWERS = [...Array(50).keys()].map((at) => 2 ** at);

function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

function draw(holder) {
  const { unit, series, outages = [], marks = [] } = JSON.parse(holder.dataset.chart);
  const old = charts.get(holder.id);
  if (old) { old.destroy(); charts.delete(holder.id); }
  const lines = series.filter((one) => one.points.length);
  if (!lines.length || typeof uPlot === "undefined") return;
  holder.replaceChildren();
  const down = outages.map(([from, to]) => [Date.parse(from) / 1000, Date.parse(to) / 1000]);
  const aborted = marks.map(([at]) => Date.parse(at) / 1000);
  const tables = lines.map((one) => broken(one.points.map((p) => [Date.parse(p[0]) / 1000, p[1]]), down));
  const data = tables.length === 1 ? tables[0] : uPlot.join(tables);
  const words = UNITS[unit];
  const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 }, font: "12px system-ui, sans-serif" };
  const options = {
    width: Math.max(240, holder.clientWidth), height: 190, cursor: { y: false }, legend: { live: true },
    scales: { y: { range: (_u, _low, high) => [0, high > 0 ? high * 1.1 : 1] } },
    axes: [{ ...axis, values: hours }, { ...axis, size: 66, values: (_u, all) => all.map(words), ...(unit === "bytes" ? { incrs: POWERS } : {}) }],
    hooks: { drawClear: [(u) => shade(u, down)], draw: [(u) => mark(u, aborted)] },
    series: [{ value: (_u, v) => (v == null ? "" : moment(new Date(v * 1000))) },
      ...lines.map((one, at) => ({
        label: one.name, stroke: colour(`--c${at % 7 + 1}`), width: 1.6, spanGaps: false, points: { show: one.points.length < 40, size: 5 },
        value: (_u, v) => (v == null ? "" : words(v)),
      }))],
  };
  const chart = new uPlot(options, data, holder);
  charts.set(holder.id, chart);
  const shown = (at) => at >= data[0][0] && at <= data[0][data[0].length - 1];
  const keys = [];
  if (down.some(([from, to]) => shown(from) || shown(to))) keys.push(["", "the job was down"]);
  if (aborted.some(shown)) keys.push(["mark", "a checkpoint was aborted"]);
  if (keys.length) holder.append(legend(keys));
}

// The points of a line with a gap at each outage; one that lasts widens the chart up to now.
function broken(points, down) {
  const first = points[0][0];
  const gaps = down.filter(([from, to]) => to > first).flatMap(([from, to]) => [[from, null], [to - 0.001, null]]);
  const all = [...points, ...gaps].sort((one, other) => one[0] - other[0]);
  return [all.map((p) => p[0]), all.map((p) => p[1])];
}

function hours(_u, splits, _axis, _space, step) {
  let last = "";
  return splits.map((one) => {
    const at = new Date(one * 1000), on = day(at), text = step >= 86400 ? on : step >= 60 ? clock(at).slice(0, 5) : clock(at);
    const dated = last && on !== last && step < 86400 ? `${text}\n${on}` : text;
    last = on;
    return dated;
  });
}

function shade(u, down) {
  const { left, top, width, height } = u.bbox;
  u.ctx.save();
  u.ctx.fillStyle = colour("--warn-soft");
  for (const [from, to] of down) {
    const x1 = Math.max(left, u.valToPos(from, "x", true)), x2 = Math.min(left + width, u.valToPos(to, "x", true));
    if (x2 > left && x1 < left + width) u.ctx.fillRect(x1, top, Math.max(2, x2 - x1), height);
  }
  u.ctx.restore();
}

function mark(u, aborted) {
  const { left, top, width, height } = u.bbox;
  u.ctx.save();
  u.ctx.fillStyle = colour("--bad");
  for (const at of aborted) {
    const x = u.valToPos(at, "x", true);
    if (x >= left && x <= left + width) u.ctx.fillRect(x - 1, top + height - 14, 3, 14);
  }
  u.ctx.restore();
}

function legend(keys) {
  const line = document.createElement("div");
  line.className = "key";
  for (const [kind, text] of keys) {
    const one = document.createElement("span"), sign = document.createElement("i");
    if (kind) sign.className = kind;
    one.append(sign, text);
    line.append(one);
  }
  return line;
}

function drawAll() { document.querySelectorAll(".chart[data-chart]").forEach(draw); }

// buttons

function toast(text, failed) {
  const one = document.createElement("div");
  one.className = failed ? "toast failed" : "toast";
  one.textContent = text;
  document.getElementById("toasts").append(one);
  setTimeout(() => one.remove(), failed ? 12000 : 5000);
}

function body(form) {
  const found = {};
  for (const field of form.elements) {
    if (!field.name) continue;
    if (field.type === "checkbox") found[field.name] = field.checked;
    else if (field.dataset.was === undefined) { if (field.value !== "") found[field.name] = field.value; }
    else if (field.value !== field.dataset.was) found[field.name] = field.value;
  }
  return form.hasAttribute("data-settings") ? { settings: found } : found;
}

async function send(form) {
  const asked = body(form);
  if (form.hasAttribute("data-settings") && !Object.keys(asked.settings).length) { toast("nothing was changed"); return; }
  const { error } = await outcome(form.dataset.action, form.dataset.method || "POST", asked);
  if (error) fail(error);
  else {
    for (const field of form.querySelectorAll("input[data-was]")) field.dataset.was = field.value;
    toast(form.dataset.done || "done");
  }
  refreshSoon();
}

// What becomes of a wish, when its operation has ended: a result, or an error.
async function outcome(url, method, asked) {
  const headers = { ...HEADERS, "Content-Type": "application/json" };
  let answer = await (await fetch(url, { method, headers, body: JSON.stringify(asked) })).json();
  while (!answer.error && answer.data.status === "running") {
    refreshSoon();
    answer = await (await fetch(`/api/v1/operations/${answer.data.id}?wait=1`, { headers: HEADERS })).json();
  }
  return answer.error ? answer : answer.data;
}

// The plan comes first: whoever restores has seen it, or confirms a restore without a plan that fits.
async function showPlan(shown) {
  const form = shown.closest("form"), go = form.querySelector("button.danger"), sure = form.querySelector(".unplanned");
  const box = sure.querySelector("input"), { plan, point } = shown.dataset;
  const unless = (words) => {
    sure.querySelector("span").textContent = words;
    sure.hidden = false;
    box.onchange = () => { go.disabled = !box.checked; };
  };
  go.disabled = sure.hidden = true;
  box.checked = false;
  shown.textContent = "asking Spark's planner what becomes of each source, operator and sink …";
  try {
    const { error, result } = await outcome(plan, "POST", { point });
    shown.textContent = error ? [error.what, error.why, error.hint].filter(Boolean).join("\n") : result.text;
    if (error) unless("restore without a plan");
    else if (result.code) unless("restore although the plan does not fit");
    else go.disabled = false;
  } catch { shown.textContent = "no answer"; unless("restore without a plan"); }
}

async function showSample(button) {
  const card = document.getElementById("sample"), head = card.querySelector("h2"), table = card.querySelector("table");
  const row = (cells, kind) => {
    const line = document.createElement("tr");
    for (const cell of cells) {
      const one = document.createElement(kind);
      one.textContent = typeof cell === "object" ? JSON.stringify(cell) : String(cell);
      line.append(one);
    }
    return line;
  };
  const { query, operator, sample } = button.dataset;
  card.hidden = false;
  table.replaceChildren();
  head.textContent = `${query}, operator ${operator}: Spark reads the state …`;
  try {
    const { error, result } = await outcome(sample, "POST", { query, operator: Number(operator), limit: 20 });
    if (error) { head.textContent = [error.what, error.why, error.hint].filter(Boolean).join("; "); return; }
    head.textContent = `${query}, operator ${operator}: ${result.rows.length} of ${result.count} rows, batch ${result.batch}`;
    table.append(row(result.columns, "th"), ...result.rows.map((one) => row(result.columns.map((name) => one[name]), "td")));
  } catch { head.textContent = "no answer"; }
}

// Without a clipboard (not on this machine and no TLS) the text is selected, to be copied by hand.
async function copy(from) {
  try { await navigator.clipboard.writeText(from.textContent); toast("copied"); } catch { getSelection().selectAllChildren(from); }
}

function fail(error) { toast([error.what, error.why, error.hint].filter(Boolean).join("; "), true); }

document.addEventListener("submit", async (event) => {
  const form = event.target.closest("form[data-action]");
  if (!form) return;
  event.preventDefault();
  const buttons = form.querySelectorAll("button:not([type='button'])");
  buttons.forEach((one) => { one.disabled = true; });
  form.closest("dialog")?.close();
  try { await send(form); } catch { fail({ what: "no answer", why: "", hint: "check that the supervisor still runs" }); }
  buttons.forEach((one) => { one.disabled = false; });
});

document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-dialog]");
  if (opener) {
    const dialog = document.getElementById(opener.dataset.dialog), planned = dialog.querySelector("[data-plan]");
    dialog.showModal();
    if (planned) showPlan(planned);
  }
  const sampler = event.target.closest("[data-sample]");
  if (sampler) showSample(sampler);
  const copier = event.target.closest("[data-copy]");
  if (copier) copy(document.getElementById(copier.dataset.copy));
  if (event.target.closest("[data-close]")) event.target.closest("dialog").close();
});

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("weir-theme", root.dataset.theme); } catch { /* then it holds for this page */ }
  drawAll();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);

let resized = 0;
addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(drawAll, 200); });

for (const part of document.querySelectorAll("[data-live]")) seen.set(part, part.innerHTML);
document.querySelector(".tabs [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
for (const one of document.querySelectorAll("[data-tail]")) one.scrollTop = one.scrollHeight;
drawAll();
listen();
tick();
setInterval(tick, 1000);
