// Makes pages live. Everything works without it: links, forms and pages of lists are the server's.

const policy = window.trustedTypes
  ? window.trustedTypes.createPolicy("valkyrie", { createHTML: (text) => text })
  : { createHTML: (text) => text };
const status = document.getElementById("status");
const live = document.getElementById("live");

// Relative times, every few seconds.
function relative(seconds) {
  const units = [["d", 86400], ["h", 3600], ["min", 60]];
  for (const [unit, length] of units) {
    if (seconds >= length) return `${Math.floor(seconds / length)} ${unit} ago`;
  }
  return seconds < 5 ? "just now" : `${Math.floor(seconds)} s ago`;
}

function tellTimes() {
  for (const one of document.querySelectorAll("time[data-epoch]")) {
    one.textContent = relative(Math.max(0, Date.now() / 1000 - Number(one.dataset.epoch)));
  }
}

// The changing part of a page, as the server sends it. What a reader opened, ticked or typed stays.
const FIELDS = "input:not([type=hidden]), select";
const field = (one) => `${one.form ? one.form.getAttribute("action") : ""} ${one.name} ${one.type === "checkbox" ? one.value : ""}`;

function remember() {
  const opened = new Map();
  for (const one of live.querySelectorAll("details[id]")) opened.set(one.id, one.open);
  const values = new Map();
  for (const one of live.querySelectorAll(FIELDS)) values.set(field(one), one.type === "checkbox" ? one.checked : one.value);
  const focused = document.activeElement && live.contains(document.activeElement) ? document.activeElement : null;
  const link = focused && focused.getAttribute("href");
  return { opened, values, link, editing: Boolean(focused && focused.matches("input, select")) };
}

function restore(kept) {
  for (const one of live.querySelectorAll("details[id]")) {
    if (kept.opened.has(one.id)) one.open = kept.opened.get(one.id);
  }
  for (const one of live.querySelectorAll(FIELDS)) {
    const value = kept.values.get(field(one));
    if (value === undefined) continue;
    if (one.type === "checkbox") one.checked = value;
    else one.value = value;
  }
  if (kept.link) {
    for (const one of live.querySelectorAll("a[href]")) {
      if (one.getAttribute("href") === kept.link) { one.focus({ preventScroll: true }); break; }
    }
  }
}

function show(html) {
  const kept = remember();
  if (kept.editing) return false;  // not under somebody's fingers; the next change brings it
  live.innerHTML = policy.createHTML(html);
  restore(kept);
  tellTimes();
  return true;
}

function follow() {
  const source = new EventSource(`/live?page=${encodeURIComponent(location.pathname + location.search)}`);
  let first = true;
  source.addEventListener("open", () => { status.textContent = "live"; status.className = "status on"; });
  source.addEventListener("fragment", (event) => {
    if (first) { first = false; return; }  // what the page shows already
    show(JSON.parse(event.data));
  });
  source.addEventListener("gone", () => { source.close(); status.textContent = ""; status.className = "status"; });
  source.addEventListener("error", () => { status.textContent = "offline, trying again"; status.className = "status off"; });
  window.addEventListener("pagehide", () => source.close());
}

// Keys: j and k go to the next and previous failed trial, / to the search field.
function keys() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches("input, select, textarea")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const link = document.querySelector(`a[data-key="${CSS.escape(event.key)}"]`);
    if (link) { event.preventDefault(); link.click(); return; }
    if (event.key === "/") {
      const field = document.querySelector("[data-search]");
      if (field) { event.preventDefault(); field.focus(); field.select(); }
    }
  });
}

// Light, dark, or as the system says.
function theme() {
  const button = document.getElementById("theme");
  if (!button) return;
  const order = ["", "light", "dark"];
  const names = { "": "Theme: system", light: "Theme: light", dark: "Theme: dark" };
  const apply = (name) => {
    if (name) document.documentElement.dataset.theme = name;
    else delete document.documentElement.dataset.theme;
    button.textContent = names[name];
  };
  let now = "";
  try { now = localStorage.getItem("theme") || ""; } catch { now = ""; }
  if (!order.includes(now)) now = "";
  apply(now);
  button.hidden = false;
  button.addEventListener("click", () => {
    now = order[(order.indexOf(now) + 1) % order.length];
    try { localStorage.setItem("theme", now); } catch { /* not remembered */ }
    apply(now);
  });
}

theme();
keys();
tellTimes();
setInterval(tellTimes, 5000);
if (live && window.EventSource) follow();
