// The search, the colours and the menu of the site (tools/site.py).
"use strict";
const root = document.documentElement;
const kept = (() => { try { return localStorage.getItem("colours"); } catch { return null; } })();
if (kept) root.dataset.colours = kept;

let entries = null;  // Pages and their parts, once search.js has come.
let waiting = null;
function tryst_search(all) {
  entries = all.map(([page, title, anchor, heading, text]) =>
    ({ page, title, anchor, heading, text, low: (title + "\n" + heading + "\n" + text).toLowerCase() }));
  if (waiting) waiting();
}

// How well an entry fits; 0: some word is not in it.
function fit(entry, words) {
  let sum = 0;
  for (const word of words) {
    const first = entry.low.indexOf(word);
    if (first < 0) return 0;
    const heading = entry.heading.toLowerCase();
    sum += 1 + Math.min(entry.low.split(word).length - 1, 5);
    if (heading.includes(word)) sum += heading.split(/\W+/).includes(word) ? 30 : 15;
    if (entry.title.toLowerCase().includes(word)) sum += 8;
  }
  return entry.page.includes("decisions/") || entry.page === "CHANGELOG.html" ? sum / 2 : sum;
}

// Appends `text` to `to`, with `words` marked.
function marked(to, text, words) {
  const pattern = new RegExp("(" + words.map((w) => w.replace(/[^\w\s]/g, "\\$&")).join("|") + ")", "i");
  text.split(pattern).forEach((part, at) => {
    if (at % 2) to.appendChild(document.createElement("mark")).textContent = part;
    else to.append(part);
  });
}

function excerpt(entry, words) {
  const low = entry.text.toLowerCase();
  let at = Math.max(0, Math.min(...words.map((w) => low.indexOf(w)).filter((i) => i >= 0), low.length) - 60);
  if (at > 0) at = low.indexOf(" ", at) + 1;
  return (at > 0 ? "... " : "") + entry.text.slice(at, at + 180) + (at + 180 < entry.text.length ? " ..." : "");
}

document.addEventListener("DOMContentLoaded", () => {
  const base = root.dataset.root;
  const input = document.querySelector(".search input");
  const found = document.querySelector(".found");

  function show() {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    found.hidden = words.length === 0;
    found.textContent = "";
    if (words.length === 0) return;
    if (!entries) {
      waiting = show;
      if (!document.querySelector("script.index")) {
        const script = document.createElement("script");
        script.className = "index";
        script.src = base + "search.js";
        document.head.append(script);
      }
      return;
    }
    const best = entries.map((entry) => [fit(entry, words), entry]).filter(([sum]) => sum > 0)
      .sort(([a], [b]) => b - a).slice(0, 20);
    if (best.length === 0) found.appendChild(document.createElement("p")).textContent = "Nothing has all of these words.";
    best.forEach(([, entry], at) => {
      const link = found.appendChild(document.createElement("a"));
      link.href = base + entry.page + "#" + entry.anchor;
      if (at === 0) link.className = "chosen";
      link.appendChild(document.createElement("b")).textContent =
        entry.heading === entry.title ? entry.title : entry.title + " / " + entry.heading;
      marked(link.appendChild(document.createElement("small")), excerpt(entry, words), words);
    });
  }

  input.addEventListener("input", show);
  input.addEventListener("keydown", (event) => {
    const chosen = found.querySelector(".chosen");
    const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
    if (step && chosen && chosen[step]) {
      chosen.className = "";
      chosen[step].className = "chosen";
      chosen[step].scrollIntoView({ block: "nearest" });
    }
    if (event.key === "Enter" && chosen) { chosen.click(); found.hidden = true; }
    if (event.key === "Escape") { input.value = ""; show(); input.blur(); }
    if (step) event.preventDefault();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && document.activeElement !== input) { event.preventDefault(); input.focus(); }
  });
  document.addEventListener("click", (event) => { if (!event.target.closest(".search")) found.hidden = true; });
  input.addEventListener("focus", show);

  document.querySelector(".colours").addEventListener("click", () => {
    const dark = root.dataset.colours ? root.dataset.colours === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.colours = dark ? "light" : "dark";
    try { localStorage.setItem("colours", root.dataset.colours); } catch { /* Nothing is kept then. */ }
  });

  const menu = document.querySelector("nav details");
  if (matchMedia("(max-width: 60rem)").matches) menu.open = false;
  const now = document.querySelector("nav [aria-current]");
  if (now && now.offsetTop > innerHeight / 2) now.closest("nav").scrollTop = now.offsetTop - innerHeight / 3;
});
