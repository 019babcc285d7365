#include <string>

#include "server/page/job_page.h"

namespace tryst {
namespace {

constexpr char kStyle[] = R"html(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Tryst: the job</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; --ink: #1d2330; --soft: #667; --ground: #fff; --panel: #f5f6f9;
  --line: #d9dce4; --bad: #d11f3a; --shm: #0f9d76; --rdma: #3b6fd6; --grpc: #8d93a3;
  --wait: #e0a020; --step: #6f9be8; --step2: #a7c3f3; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7ee; --soft: #99a0b0; --ground: #14171e;
  --panel: #1c2029; --line: #333947; --bad: #ff5c70; --shm: #2cc596; --rdma: #6c9bff;
  --grpc: #7d8496; --wait: #e5b04a; --step: #4f7fd6; --step2: #34568f; } }
* { box-sizing: border-box; }
body { font: 14px/1.45 system-ui, sans-serif; margin: 0; color: var(--ink);
  background: var(--ground); }
header { display: flex; flex-wrap: wrap; gap: .4rem 1.6rem; align-items: baseline;
  padding: .8rem 1.2rem; border-bottom: 1px solid var(--line); }
h1 { font-size: 1.15rem; margin: 0; } h2 { font-size: .95rem; margin: 0 0 .5rem; }
header b { font-variant-numeric: tabular-nums; } #trouble { color: var(--bad); }
main { display: grid; grid-template-columns: minmax(0, 3fr) minmax(0, 2fr); gap: 1rem;
  padding: 1rem 1.2rem; max-width: 110rem; margin: auto; }
@media (max-width: 60rem) { main { grid-template-columns: minmax(0, 1fr); } }
section { background: var(--panel); border: 1px solid var(--line); border-radius: .5rem;
  padding: .8rem 1rem; min-width: 0; } .wide { grid-column: 1 / -1; }
canvas { display: block; width: 100%; cursor: crosshair; }
.legend { color: var(--soft); display: flex; gap: 1rem; flex-wrap: wrap; margin-top: .4rem; }
.legend i { display: inline-block; width: .8em; height: .8em; border-radius: .15em;
  margin-right: .35em; vertical-align: -.05em; }
.is-shm { background: var(--shm); } .is-rdma { background: var(--rdma); }
.is-grpc { background: var(--grpc); } .is-bad { background: var(--bad); }
.is-step { background: var(--step); } .is-step2 { background: var(--step2); }
.is-wait { background: var(--wait); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--soft); font-weight: 500; } .n { text-align: right; }
th, td { padding: .18rem .6rem .18rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere; } tr:last-child td { border-bottom: 0; }
.n, .time, button.link { white-space: nowrap; } .n { overflow-wrap: normal; white-space: nowrap; }
.bad { color: var(--bad); } .none { color: var(--soft); } .tall { max-height: 24rem; overflow: auto; }
button.link { font: inherit; background: none; border: 0; padding: 0; color: var(--rdma);
  cursor: pointer; text-align: left; } button.link:hover { text-decoration: underline; }
input { font: 13px system-ui, sans-serif; padding: .15rem .5rem; border: 1px solid var(--line); border-radius: .3rem;
  background: var(--ground); color: inherit; float: right; width: 12rem; }
#tip { position: fixed; pointer-events: none; background: var(--ground); border: 1px solid
  var(--line); border-radius: .3rem; padding: .3rem .6rem; max-width: 30rem; box-shadow: 0 2px 10px
  #0004; white-space: pre-line; z-index: 2; }
dialog { color: inherit; background: var(--ground); border: 1px solid var(--line); border-radius:
  .5rem; width: min(72rem, 94vw); max-height: 88vh; overflow: auto; }
dialog h2 { margin-top: 1rem; } pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: 12px; }
</style></head>
)html";

constexpr char kBody[] = R"html(<body>
<header><h1>Tryst: the job</h1><span><b id="up">…</b></span><span><b id="rate"></b></span>
<span><b id="red"></b></span><span id="trouble" role="alert"></span></header>
<main>
<section><h2>Who moves what to whom <span class="none" id="matrix-note"></span></h2>
<canvas id="matrix" role="img" aria-label="Producers across, consumers down"></canvas>
<div class="legend"><span><i class="is-shm"></i>shared memory</span>
<span><i class="is-rdma"></i>RDMA</span>
<span><i class="is-grpc"></i>gRPC</span>
<span><i class="is-bad"></i>trouble</span>
<span>pale: nothing moves</span></div></section>
<section><h2>Who keeps others waiting</h2><table><thead><tr><th>Producer<th class="n"
title="What others' fetches waited for its Send, in a second, of all of them">ms/s<th class="n">
Waiting<th>Most of all</thead><tbody id="stragglers"></tbody></table></section>
<section class="wide"><h2>Steps <span class="none" id="steps-note"></span></h2>
<canvas id="steps" role="img" aria-label="Steps of each worker over time"></canvas>
<div class="legend"><span><i class="is-step"></i><i
class="is-step2"></i>step after step, from the first fetch to the last</span>
<span><i class="is-wait"></i>its longest wait</span></div></section>
<section class="wide" id="weights-part" hidden><h2>Weights</h2><div class="tall"><table><thead><tr>
<th>Set<th>Worker<th>Role<th class="n">Active<th class="n">For<th class="n">Newest<th>Holds or serves
<th>Waits for, or what is wrong</thead><tbody id="weights"></tbody></table></div></section>
<section><h2>Members <input id="filter" type="search" placeholder="filter" aria-label="filter">
</h2><div class="tall"><table><thead><tr><th>Worker<th>State<th>Address<th class="n">Up
<th class="n">MB/s in<th class="n">MB/s out</thead><tbody id="members"></tbody></table></div>
<p class="none" id="members-left"></p></section>
<section><h2>History</h2><div class="tall"><table><tbody id="history"></tbody></table></div>
</section>
</main>
<div id="tip" hidden></div>
<dialog id="drill"><form method="dialog"><button autofocus>Close</button></form>
<h2 id="drill-name"></h2><p id="drill-what"></p>
<h2>Paths</h2><table><thead><tr><th>From or to<th>Path<th>State<th>Why<th class="n">Now
<th class="n">Done<th class="n">Failed<th class="n">99 %, ms</thead><tbody id="drill-paths">
</tbody></table>
<h2>Operations under way</h2><table><thead><tr><th>Step<th>Key<th>From or to<th class="n">ms
<th>Waits for</thead><tbody id="drill-ops"></tbody></table>
<h2 id="drill-key"></h2><pre id="drill-trace"></pre></dialog>
)html";

constexpr char kScript[] = R"html(<script>
'use strict';
const $ = id => document.getElementById(id);
const texts = {peer_send: "the producer's Send", local_send: 'its own Send'};
const waits = w => texts[w] || (w || '-').replace(/_/g, ' ');
const short = name => name.replace(/^\/job:/, '').replace('/replica:0', '').replace('/task:', ' ');
// Figures are shown once there are some.
// Three digits, and never an exponent.
const round = x => Math.abs(x) >= 100 ? Math.round(x) : Math.abs(x) < 1e-6 ? 0 : Number(x.toPrecision(3));
const figure = x => x < 0 ? '–' : round(x);
const colour = name => getComputedStyle(document.documentElement).getPropertyValue('--' + name);
const brief = ms => Math.abs(ms) < 1e3 ? round(ms) + ' ms' : round(ms / 1e3) + ' s';
const span = ms => ms < 0 ? '–' : ms < 60e3 ? Math.round(ms / 1e3) + ' s' :
  ms < 3600e3 ? Math.round(ms / 60e3) + ' min' : round(ms / 3600e3) + ' h';
// Everything shown goes in as text: names and messages come from peers.
function rows(id, all, cells, none = 'none') {
  const body = $(id), made = [];
  for (const one of all) {
    const tr = document.createElement('tr');
    for (let cell of cells(one)) {
      const td = tr.insertCell();
      if (typeof cell !== 'object') cell = {text: cell};
      if (cell.open) {
        const button = document.createElement('button');
        button.className = 'link'; button.textContent = cell.text; button.onclick = cell.open;
        td.append(button);
      } else td.textContent = cell.text;
      if (cell.title) td.title = cell.title;
      td.className = (typeof cell.text === 'number' || cell.text === '–' ? 'n ' : '') +
        (cell.kind || '');
    }
    made.push(tr);
  }
  if (!made.length) {
    const tr = document.createElement('tr'), td = tr.insertCell();
    td.colSpan = 9; td.textContent = none; td.className = 'none';
    made.push(tr);
  }
  body.replaceChildren(...made);
}
const order = (a, b) => a.localeCompare(b, undefined, {numeric: true});
function read(raw) {
  const name = n => raw.names[n];
  const job = {
    workers: raw.workers.map(([n, address, age, up, error]) =>
      ({name: name(n), address, age, up, error, in: -1, out: -1})),
    edges: raw.edges.map(([c, p, path, bad, rate, ops, now, failed, p99, awaited, mostly, why]) =>
      ({consumer: name(c), producer: name(p), path, bad, rate, ops, now, failed, p99, awaited,
        mostly, why})),
    steps: raw.steps.map(([w, step, from, to, longest, peer, ms]) =>
      ({worker: name(w), step, from, to, longest, peer: name(peer), ms})),
    weights: (raw.weights || []).flatMap(([n, views]) =>
      views.map(view => ({worker: name(n), ...view}))),
    changes: raw.changes};
  const of = new Map(job.workers.map(w => [w.name, w]));
  for (const e of job.edges) {
    const c = of.get(e.consumer), p = of.get(e.producer);
    for (const [w, way] of [[c, 'in'], [p, 'out']]) {
      if (w && e.rate >= 0) w[way] = Math.max(0, w[way]) + e.rate;
    }
    if ((c && c.error) || (p && p.error)) e.bad = 1;
  }
  job.workers.sort((a, b) => order(a.name, b.name));
  return job;
}
// A canvas as sharp as the screen; `hit` gives what a tip says of a place.
function sheet(id, height, draw) {
  const canvas = $(id), scale = devicePixelRatio || 1, width = canvas.clientWidth;
  canvas.style.height = height + 'px';
  canvas.width = Math.round(width * scale); canvas.height = Math.round(height * scale);
  const pen = canvas.getContext('2d');
  pen.scale(scale, scale);
  pen.font = '12px system-ui, sans-serif';
  canvas.hit = draw(pen, width);
}
for (const id of ['matrix', 'steps']) {
  $(id).addEventListener('mousemove', event => {
    const found = $(id).hit && $(id).hit(event.offsetX, event.offsetY);
    $('tip').hidden = !found;
    if (!found) return;
    $('tip').textContent = found.text;
    const left = event.clientX + 14 + $('tip').offsetWidth > innerWidth;
    $('tip').style.left = (left ? event.clientX - 14 - $('tip').offsetWidth : event.clientX + 14)
      + 'px';
    $('tip').style.top = Math.min(event.clientY + 14, innerHeight - $('tip').offsetHeight) + 'px';
  });
  $(id).addEventListener('mouseleave', () => { $('tip').hidden = true; });
  $(id).addEventListener('click', event => {
    const found = $(id).hit && $(id).hit(event.offsetX, event.offsetY);
    if (found) drill(found.worker);
  });
}
const kind = e => e.bad ? 'bad' : e.path.startsWith('rdma') ? 'rdma' : e.path.startsWith('grpc') ? 'grpc' :
  'shm';
function showMatrix(job) {
  const across = [...new Set(job.edges.map(e => e.producer))].sort(order);
  const down = [...new Set(job.edges.map(e => e.consumer))].sort(order);
  $('matrix-note').textContent = job.edges.length ?
    `${down.length} consumers (down) take from ${across.length} producers (across)` :
    'nobody has asked anybody for a tensor yet';
  const width = $('matrix').clientWidth, few = all => all.length <= 24;
  const left = few(down) ? 92 : 8, top = few(across) ? 84 : 8;
  const cell = Math.max(2, Math.min(few(down) ? 34 : 60, (width - left - 8) / Math.max(1, across.length)));
  const tall = Math.max(2, Math.min(cell, 34, 560 / Math.max(1, down.length)));
  const most = Math.max(0, ...job.edges.map(e => e.rate));
  const byPlace = new Map();
  const x = new Map(across.map((p, i) => [p, i])), y = new Map(down.map((c, i) => [c, i]));
  sheet('matrix', top + Math.max(1, down.length) * tall + 8, pen => {
    const gap = cell > 6 ? 2 : cell > 3 ? 1 : 0, low = tall > 6 ? 2 : tall > 3 ? 1 : 0;
    for (const pass of [0, 1]) for (const e of job.edges) {  // What is red lies above.
      if (Number(!!e.bad) !== pass) continue;
      const i = x.get(e.producer), j = y.get(e.consumer);
      byPlace.set(i + ' ' + j, e);
      pen.globalAlpha = e.bad ? 1 : e.rate > 0 && most > 0 ?
        .45 + .55 * Math.sqrt(e.rate / most) : .28;
      pen.fillStyle = colour(kind(e));
      const wide = e.bad && cell < 5 ? 1 : 0, high = e.bad && tall < 5 ? 1 : 0;
      pen.fillRect(left + i * cell - wide, top + j * tall - high, cell - gap + 2 * wide,
        tall - low + 2 * high);
    }
    pen.globalAlpha = 1;
    pen.fillStyle = colour('soft');
    pen.textBaseline = 'middle';
    if (few(down)) {
      pen.textAlign = 'right';
      down.forEach((c, j) => pen.fillText(short(c), left - 8, top + (j + .5) * tall, left - 10));
    }
    if (few(across)) {
      pen.textAlign = 'left';
      across.forEach((p, i) => {
        pen.save(); pen.translate(left + (i + .5) * cell, top - 8); pen.rotate(-Math.PI / 3);
        pen.fillText(short(p), 0, 0, 90); pen.restore();
      });
    }
    return (px, py) => {
      const e = byPlace.get(Math.floor((px - left) / cell) + ' ' + Math.floor((py - top) / tall));
      return e && {worker: e.consumer, text: `${short(e.producer)} → ${short(e.consumer)}\n` +
        `${e.path || 'no path'}${e.bad ? ', trouble' : ''}: ${figure(e.rate)} MB/s, ` +
        `${figure(e.ops)} tensors/s, ${e.now} under way, ${e.failed} failed\n` +
        `99 % within ${round(e.p99)} ms, waits mostly for ${waits(e.mostly)}` +
        (e.why ? '\n' + e.why.slice(0, 400) : '')};
    };
  });
}
function showSteps(job) {
  const by = new Map();
  for (const s of job.steps) {
    if (!by.has(s.worker)) by.set(s.worker, []);
    by.get(s.worker).push(s);
  }
  // The slowest: whose newest step took longest.
  const all = [...by].map(([worker, steps]) => {
    steps.sort((a, b) => a.from - b.from);
    return {worker, steps, took: Math.max(...steps.slice(-3).map(s => s.to - s.from))};
  }).sort((a, b) => b.took - a.took);
  const shown = all.slice(0, 40).sort((a, b) => order(a.worker, b.worker));
  const newest = Math.max(...shown.flatMap(w => w.steps.map(s => s.to)), -1e15);
  const lengths = shown.flatMap(w => w.steps.map(s => s.to - s.from)).sort((a, b) => a - b);
  const middle = lengths[lengths.length >> 1] || 1;
  const oldest = Math.max(Math.min(...shown.flatMap(w => w.steps.map(s => s.from)), newest - 1),
    newest - Math.max(12 * middle, 50));
  $('steps-note').textContent = !shown.length ? 'no traces yet' :
    `the last ${brief(newest - oldest)}, as far as traces are kept` +
    (all.length > shown.length ? `; the ${shown.length} slowest of ${all.length} workers` : '');
  sheet('steps', Math.max(1, shown.length) * 18 + 22, (pen, width) => {
    const left = 92, at = ms => left + (ms - oldest) / (newest - oldest) * (width - left - 8);
    const hits = [];
    pen.textBaseline = 'middle';
    shown.forEach((w, j) => {
      pen.fillStyle = colour('soft'); pen.textAlign = 'right';
      pen.fillText(short(w.worker), left - 8, j * 18 + 8, left - 10);
      w.steps.forEach((s, i) => {
        if (s.to < oldest) return;
        const from = Math.max(left, at(s.from)), to = Math.max(from + 1.5, at(s.to));
        pen.fillStyle = colour(i % 2 ? 'step' : 'step2');
        pen.fillRect(from, j * 18 + 1, to - from, 14);
        pen.fillStyle = colour('wait');
        pen.fillRect(from, j * 18 + 12, Math.min(1, s.ms / Math.max(s.to - s.from, 1e-6)) *
          (to - from), 3);
        hits.push([from, to, j, s]);
      });
    });
    pen.fillStyle = colour('soft');
    for (let i = 0; i <= 4; i++) {
      pen.textAlign = i === 4 ? 'right' : i ? 'center' : 'left';
      const ms = oldest + (newest - oldest) * i / 4;
      if (shown.length) pen.fillText(i === 4 ? 'now' : brief(ms - newest), at(ms),
        shown.length * 18 + 10);
    }
    return (px, py) => {
      const found = hits.find(([from, to, j]) => px >= from && px <= to &&
        Math.floor(py / 18) === j);
      if (!found) return null;
      const s = found[3];
      return {worker: s.worker, text: `${short(s.worker)}, step ${s.step}: ` +
        `${round(s.to - s.from)} ms\nlongest: ${round(s.ms)} ms for ${waits(s.longest)}` +
        (s.peer ? `, ${short(s.peer)}` : '')};
    };
  });
}
function showStragglers(job) {
  const by = new Map();
  for (const e of job.edges) {
    if (!(e.awaited > 0)) continue;
    const one = by.get(e.producer) || {name: e.producer, awaited: 0, count: 0, most: null};
    one.awaited += e.awaited; one.count++;
    if (!one.most || e.awaited > one.most.awaited) one.most = e;
    by.set(e.producer, one);
  }
  rows('stragglers', [...by.values()].sort((a, b) => b.awaited - a.awaited).slice(0, 10), s => [
    {text: short(s.name), open: () => drill(s.name)}, round(s.awaited), s.count,
    {text: short(s.most.consumer), open: () => drill(s.most.consumer)}], 'nobody waits');
}
function showMembers(job) {
  const wanted = $('filter').value.toLowerCase();
  const state = w => w.error ? 2 : w.age < 0 ? 1 : 0;
  const all = job.workers.filter(w => (w.name + ' ' + w.address).toLowerCase().includes(wanted))
    .sort((a, b) => state(b) - state(a) || order(a.name, b.name));
  rows('members', all.slice(0, 100), w => [
    {text: short(w.name), title: w.name, open: () => drill(w.name)},
    w.error ? {text: 'does not answer', kind: 'bad', title: w.error} :
      w.age < 0 ? {text: 'not asked yet', kind: 'none'} :
      w.age > 10e3 ? {text: `as of ${span(w.age)} ago`, kind: 'none'} : 'up',
    w.address, {text: span(w.up), kind: 'n'}, figure(w.in), figure(w.out)]);
  $('members-left').textContent = all.length > 100 ? `and ${all.length - 100} more` : '';
}
function showWeights(job) {
  const none = number => number === '0' ? '–' : number;
  const named = new Map(job.weights.map(v => [v.incarnation, v.worker]));
  $('weights-part').hidden = !job.weights.length;
  const all = job.weights.slice().sort((a, b) => order(a.set, b.set) || b.leads - a.leads ||
    order(b.role, a.role) || order(a.worker, b.worker));
  rows('weights', all.slice(0, 200), v => [
    v.set, {text: short(v.worker), title: v.worker, open: () => drill(v.worker)},
    v.role === 'owner' ? `owner ${v.rank} of ${v.owners}${v.leads ? ', leads' : ''}` : v.role,
    {text: none(v.active), kind: 'n'}, {text: v.active_s < 0 ? '–' : span(v.active_s * 1e3), kind: 'n'},
    {text: none(v.newest), kind: 'n'},
    v.role === 'owner' ? v.holds.join(', ') : v.role === 'member' ?
      {text: v.serves === '0' ? 'may serve nothing' : v.serves + (v.confirmed ? '' : ', unconfirmed'),
        kind: v.serves === '0' || !v.confirmed ? 'bad' : ''} : '',
    {text: [!v.leads ? '' : v.active === '0' ? `${v.members} members` :
      `${v.members - v.behind} of ${v.members} members serve it`, v.note,
      v.awaited.length ? 'waits for ' + v.awaited.map(i => short(named.get(i) || i)).join(', ') : '']
      .filter(text => text).join('; '), kind: v.behind ? 'bad' : ''}], 'none');
}
let job = null;
function show() {
  if (!job) return;
  const up = job.workers.filter(w => !w.error && w.age >= 0).length;
  const red = job.edges.filter(e => e.bad).length, rates = job.edges.filter(e => e.rate >= 0);
  $('up').textContent = `${up} of ${job.workers.length} members answer`;
  const rate = rates.reduce((sum, e) => sum + e.rate, 0);
  $('rate').textContent = !rates.length ? '' :
    rate < 1e4 ? `${round(rate)} MB/s` : `${round(rate / 1e3)} GB/s`;
  $('red').textContent = red ? `${red} of ${job.edges.length} pairs in trouble` : '';
  $('red').className = red ? 'bad' : '';
  showMatrix(job); showSteps(job); showStragglers(job); showWeights(job); showMembers(job);
  rows('history', job.changes.slice().reverse(), ([ms, worker, what]) => [
    {text: new Date(ms).toLocaleTimeString(), kind: 'time'}, {text: short(worker), open: () => drill(worker)},
    {text: what, kind: /^restarted/.test(what) ? 'bad' : ''}]);
}
async function drill(worker) {
  $('drill-name').textContent = worker;
  $('drill-what').textContent = 'asking it …';
  $('drill-key').textContent = $('drill-trace').textContent = '';
  for (const id of ['drill-paths', 'drill-ops']) $(id).replaceChildren();
  $('tip').hidden = true;
  if (!$('drill').open) $('drill').showModal();
  try {
    const answer = await fetch('/worker' + encodeURI(worker));
    if (!answer.ok) throw Error('a recording has no more of it');
    const said = await answer.json();
    if (said.error) throw Error(said.error);
    $('drill-what').textContent = `${said.paths.address}, incarnation ${said.paths.incarnation}, ` +
      `protocol ${said.paths.protocol}, up ${span(said.paths.up_ms)}`;
    rows('drill-paths', said.paths.paths.filter(p => p.in_use || p.state !== 'not tried'), p => [
      {text: (p.role === 'fetch' ? 'from ' : 'to ') + short(p.peer)}, p.path,
      {text: p.state, kind: p.health === 'failing' ? 'bad' : ''}, p.why,
      p.under_way, p.done, {text: p.failed, kind: p.failed ? 'bad' : ''}, round(p.p99_ms)]);
    rows('drill-ops', said.waiting ? said.waiting.operations.slice(0, 200) : [], op => [
      {text: String(op.step)}, {text: op.key.split(';')[3] || op.key, title: op.key,
        open: () => showKey(op.key.split(';')[3] || op.key)},
      {text: (op.role === 'fetch' ? 'from ' : 'to ') + short(op.peer)}, round(op.ms),
      waits(op.waits_for)]);
  } catch (e) {
    $('drill-what').textContent = e.message;
  }
}
async function showKey(key) {
  $('drill-key').textContent = `What members know of ${key}`;
  $('drill-trace').textContent = 'asking …';
  $('drill-trace').textContent = await (await fetch('/key/' + encodeURIComponent(key))).text();
}
async function look() {
  try {
    const answer = await fetch('/job.json');
    if (!answer.ok) throw Error(String(answer.status));
    job = read(await answer.json());
    $('trouble').textContent = '';
    show();
  } catch (e) {
    $('trouble').textContent = `tryst page does not answer: ${e.message}`;
  }
}
$('filter').addEventListener('input', () => job && showMembers(job));
addEventListener('resize', show);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', show);
look();
setInterval(look, 2000);
</script></body></html>
)html";

}  // namespace

absl::string_view JobHtml() {
  static const std::string& page = *new std::string(std::string(kStyle) + kBody + kScript);
  return page;
}

}  // namespace tryst
