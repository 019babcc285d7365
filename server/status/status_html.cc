#include "server/status/status_html.h"

#include <string>

namespace tryst {
namespace {

constexpr char kStyle[] = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Tryst</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; --line: #8884; --bad: #c33; --good: #2a7; --accent: #47c; }
body { font: 14px/1.45 system-ui, sans-serif; margin: 1.2rem auto; max-width: 78rem;
  padding: 0 1rem; }
h1 { font-size: 1.3rem; margin: 0; } h2 { font-size: 1rem; margin: 1.6rem 0 .3rem; }
#what { opacity: .75; } nav { margin-top: .5rem; }
nav button { font: inherit; padding: .2rem .8rem; border: 1px solid var(--line); background: none;
  color: inherit; cursor: pointer; border-radius: .3rem; }
nav button[aria-pressed=true] { background: var(--accent); color: #fff; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .2rem .6rem .2rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; } td.n, th.n { text-align: right; } td.key { word-break: break-all; }
.bad { color: var(--bad); } .good { color: var(--good); } .none { opacity: .6; }
.plots { display: flex; gap: 2rem; flex-wrap: wrap; } figure { margin: .5rem 0; }
figcaption { opacity: .75; } svg { border-bottom: 1px solid var(--line); background: #8881; }
polyline { fill: none; stroke: var(--accent); stroke-width: 1.5; }
</style></head>
)";

constexpr char kBody[] = R"(<body>
<h1 id="worker">…</h1><div id="what"></div>
<nav>
<button data-view="paths" aria-pressed="true">Paths</button>
<button data-view="waiting" aria-pressed="false">Waiting</button>
<button data-view="members" aria-pressed="false">Members and errors</button>
<a href="/metrics">metrics</a> · <a href="/trace.json">trace.json</a>
</nav>
<p id="trouble" class="bad" role="alert"></p>
<section id="paths">
<div class="plots">
<figure><svg id="rate" width="420" height="110" role="img"></svg>
<figcaption>Throughput, MB/s: <b id="rate-now">-</b></figcaption></figure>
<figure><svg id="delay" width="420" height="110" role="img"></svg>
<figcaption>Mean time of an operation, ms: <b id="delay-now">-</b></figcaption></figure>
</div>
<h2>Paths</h2>
<table><thead><tr><th>From or to<th>Path<th>State<th>Why<th class="n">Under way<th class="n">Done
<th class="n">Failed<th class="n">MB/s<th class="n">99 % within, ms<th>Waits mostly for
</thead><tbody id="path-rows"></tbody></table>
</section>
<section id="waiting" hidden>
<h2>Steps</h2><table><thead><tr><th>Step<th class="n">Operations<th class="n">Oldest, ms
<th>Waits for</thead><tbody id="step-rows"></tbody></table>
<h2>Operations under way</h2>
<table><thead><tr><th>Step<th>Key<th>From or to<th class="n">Since, ms<th>Waits for
<th class="n">ms<th>Detail</thead><tbody id="op-rows"></tbody></table>
<p id="left-out"></p>
<h2>In the rendezvous</h2>
<table><thead><tr><th>Step<th>Key<th>What<th class="n">Since, ms</thead>
<tbody id="rendezvous-rows"></tbody></table>
<p id="waiting-left-out"></p>
</section>
<section id="members" hidden>
<h2>Members</h2><table><thead><tr><th>Worker<th>Address<th>Incarnation</thead>
<tbody id="member-rows"></tbody></table>
<h2>What changed</h2><table><thead><tr><th>When<th>Worker<th>What</thead>
<tbody id="change-rows"></tbody></table>
<h2>Last warnings and errors of the process</h2>
<table><thead><tr><th>When<th>Line</thead><tbody id="error-rows"></tbody></table>
</section>
)";

constexpr char kScript[] = R"(<script>
'use strict';
const $ = id => document.getElementById(id);
const texts = {peer_send: "the producer's Send", local_send: 'the local Send'};
const waits = w => texts[w] || (w || '-').replace(/_/g, ' ');
const edge = key => key.split(';')[3] || key;
// Everything shown goes in as text: keys and messages come from peers.
function rows(id, all, cells) {
  const body = $(id);
  body.replaceChildren();
  for (const one of all) {
    const tr = body.insertRow();
    for (let cell of cells(one)) {
      const td = tr.insertCell();
      if (typeof cell !== 'object') cell = {text: cell};
      td.textContent = cell.text;
      if (cell.title) td.title = cell.title;
      td.className = (typeof cell.text === 'number' ? 'n ' : '') + (cell.kind || '');
    }
  }
  if (!all.length) {
    const td = body.insertRow().insertCell();
    td.colSpan = 12; td.textContent = 'none'; td.className = 'none';
  }
}
const round = x => x >= 100 ? Math.round(x) : Number(x.toPrecision(3));
const past = {}, plots = {rate: [], delay: []};
function plot(name, value) {
  const all = plots[name], svg = $(name), w = 420, h = 110;
  if (value === null) return;  // Nothing to show, or nothing new.
  all.push(value);
  if (all.length > 150) all.shift();
  const most = Math.max(...all);
  const line = document.createElementNS('http://www.w3.org/2000/svg', 'polyline');
  line.setAttribute('points', all.map((y, i) =>
    `${(i + 150 - all.length) * w / 149},${h - 4 - y / (most || 1) * (h - 8)}`).join(' '));
  svg.replaceChildren(line);
  svg.setAttribute('aria-label', `${name}: ${value}, at most ${most}`);
  $(name + '-now').textContent = `${round(value)} (most ${round(most)})`;
}
function showPaths(all) {
  let bytes = 0, ms = 0, ended = 0;
  const seconds = (all.steady_ns - (past.steady_ns || all.steady_ns)) / 1e9;
  past.steady_ns = all.steady_ns;
  for (const p of all.paths) {
    const id = [p.role, p.peer, p.path].join(' '), last = past[id];
    const total = Object.values(p.waited_ms).reduce((a, b) => a + b, 0);
    p.rate = last && seconds > 0 ? (p.bytes - last.bytes) / seconds / 1e6 : 0;
    if (last) {
      bytes += p.bytes - last.bytes; ms += total - last.total;
      ended += p.done + p.failed - last.ended;
    }
    const more = Object.entries(p.waited_ms)
      .map(([w, t]) => [w, t - (last && last.waited[w] || 0)]).sort((a, b) => b[1] - a[1])[0];
    p.mostly = more && more[1] > 0 ? more[0] : last && last.mostly;
    past[id] = {bytes: p.bytes, total, ended: p.done + p.failed, waited: p.waited_ms,
                mostly: p.mostly};
  }
  plot('rate', seconds > 0 ? bytes / seconds / 1e6 : null);
  plot('delay', ended > 0 ? ms / ended : null);
  rows('path-rows', all.paths.filter(p => p.in_use || p.state !== 'not tried'), p => [
    (p.role === 'fetch' ? 'from ' : 'to ') + p.peer, p.path,
    {text: p.state, kind: p.health === 'failing' ? 'bad' : p.in_use ? 'good' : ''}, p.why,
    p.under_way, p.done, {text: p.failed, kind: p.failed ? 'bad' : ''}, round(p.rate),
    round(p.p99_ms), waits(p.mostly)]);
}
function showWaiting(all) {
  const steps = new Map();
  for (const op of all.operations) {
    const s = steps.get(op.step) || {count: 0, ms: 0, waits: {}};
    s.count++; s.ms = Math.max(s.ms, op.ms);
    s.waits[op.waits_for] = (s.waits[op.waits_for] || 0) + 1;
    steps.set(op.step, s);
  }
  rows('step-rows', [...steps].sort((a, b) => b[1].ms - a[1].ms), ([step, s]) => [
    {text: String(step)}, s.count, round(s.ms),
    Object.entries(s.waits).map(([w, n]) => `${waits(w)} (${n})`).join(', ')]);
  rows('op-rows', all.operations.slice(0, 200), op => [
    {text: String(op.step)}, {text: edge(op.key), title: op.key, kind: 'key'},
    `${op.role === 'fetch' ? 'from' : 'to'} ${op.peer} by ${op.path}`, round(op.ms),
    waits(op.waits_for), round(op.waits_ms), op.detail]);
  leftOut('left-out', all.left_out + all.operations.length);
  rows('rendezvous-rows', all.waiting.slice(0, 200), w => [
    {text: String(w.step)}, {text: edge(w.key), title: w.key, kind: 'key'}, w.kind, round(w.ms)]);
  leftOut('waiting-left-out', all.waiting_left_out + all.waiting.length);
}
function leftOut(id, all) {
  $(id).textContent = all > 200 ? `and ${all - 200} younger ones` : '';
}
const time = ms => new Date(ms).toLocaleTimeString();
function showMembers(all) {
  rows('member-rows', all.members, m => [m.worker, m.address,
    /^0+$/.test(m.incarnation) ? {text: 'not heard from', kind: 'none'} : m.incarnation]);
  rows('change-rows', all.changes.slice().reverse(), c => [time(c.unix_ms), c.worker,
    {text: c.what, kind: /^restarted/.test(c.what) ? 'bad' : ''}]);
  rows('error-rows', all.errors.slice().reverse(), e => [time(e.unix_ms), e.line]);
}
async function look() {
  try {
    const [paths, waiting] = await Promise.all(['/paths.json', '/waiting.json'].map(
      async url => (await fetch(url)).json()));
    $('worker').textContent = paths.worker;
    $('what').textContent = `${paths.address}, incarnation ${paths.incarnation}, protocol ` +
      `${paths.protocol}, up ${Math.round(paths.up_ms / 1000)} s`;
    document.title = `Tryst ${paths.worker}`;
    $('trouble').textContent = paths.trouble || waiting.trouble || '';
    showPaths(paths); showWaiting(waiting); showMembers(paths);
  } catch (e) {
    $('trouble').textContent = `the worker does not answer: ${e.message}`;
  }
}
for (const button of document.querySelectorAll('nav button')) {
  button.addEventListener('click', () => {
    for (const other of document.querySelectorAll('nav button')) {
      other.setAttribute('aria-pressed', String(other === button));
      $(other.dataset.view).hidden = other !== button;
    }
  });
}
look();
setInterval(look, 2000);
</script></body></html>
)";

}  // namespace

absl::string_view StatusHtml() {
  static const std::string& page = *new std::string(std::string(kStyle) + kBody + kScript);
  return page;
}

}  // namespace tryst
