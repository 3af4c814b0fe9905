// The table of clients: kept row by row, so that only what changed is touched.

import { find, make, say, show } from "./dom.js";
import { tone } from "./tree.js";
import { NOTHING, ago, count, brief, isNumber, percent, plural } from "./words.js";

const PAGE = 100;
const SOON = 7 * 86400;

// `sort` is what a column is ordered by, `tone` a class for its cell.
const COLUMNS = [
  { name: "Client", say: (row) => row.client, sort: (row) => row.client },
  { name: "Doing", say: doing, sort: doing, tone: (row) => `doing ${doing(row)}` },
  { name: "Connected", say: connected, sort: connected, tone: (row) => (row.connected ? "" : "muted") },
  { name: "Updates", figure: true, say: (row) => count(row.updates), sort: (row) => row.updates },
  { name: "Version", figure: true, say: (row) => count(row.version), sort: (row) => row.version },
  { name: "Staleness", figure: true, say: (row) => count(row.staleness), sort: (row) => row.staleness },
  { name: "Updated", figure: true, say: (row, at) => ago(since(row, at)), sort: (row) => -row.last_update },
  { name: "Accuracy", figure: true, say: (row) => percent(row.accuracy), sort: (row) => row.accuracy },
  { name: "Used / alone", figure: true, say: compared, sort: gain, tone: (row) => (gain(row) < 0 ? "warn" : "") },
  { name: "Cluster", figure: true, say: cluster, sort: cluster, tone: (row) => `cluster ${tone(row.cluster)}` },
  { name: "Refused", figure: true, say: (row) => count(row.refused), sort: (row) => row.refused, tone: refusedTone },
  { name: "Idle", figure: true, say: (row) => percent(row.idle_share), sort: (row) => row.idle_share },
  { name: "Access ends", figure: true, say: (row, at) => end(row, at), sort: expires, tone: ending },
  { name: "Note", say: note, sort: note, tone: (row) => (row.quarantined ? "bad" : "") },
];

export const KINDS = {
  "All clients": () => true,
  Connected: (row) => row.connected,
  Training: (row) => row.doing === "training",
  Away: (row) => row.doing === "away",
  Quarantined: (row) => Boolean(row.quarantined),
};

export function doing(row) {
  return row.quarantined ? "quarantined" : String(row.doing ?? NOTHING);
}

export function note(row) {
  return row.quarantined ?? "";
}

export const since = (row, at) => (isNumber(row.last_update) ? at.uptime - row.last_update : null);

// How the model that the client works with does beside one that it trains alone (join --shadow).
export function compared(row) {
  return isNumber(row.used) && isNumber(row.alone) ? `${percent(row.used)} / ${percent(row.alone)}` : NOTHING;
}

function gain(row) {
  return isNumber(row.used) && isNumber(row.alone) ? row.used - row.alone : null;
}

function connected(row) {
  return row.connected ? "yes" : "no";
}

// Of its token and the certificate that it has shown, what ends first.
function expires(row) {
  const ends = [row.expires, row.certificate_expires].filter(isNumber);
  return ends.length ? Math.min(...ends) : null;
}

function ending(row, at) {
  const last = expires(row);
  return last !== null && last - at.now < SOON ? "warn" : "";
}

function refusedTone(row) {
  return row.refused ? "warn" : "";
}

function cluster(row) {
  return row.cluster ?? NOTHING;
}

export function end(row, at) {
  if (row.token === false) return "none";
  const last = expires(row);
  if (last === null) return "never";
  return last <= at.now ? "expired" : `in ${brief(last - at.now)}`;
}

const view = { by: 0, down: false, shown: PAGE, order: "", rows: new Map(), given: [], at: null };

export function makeTable(manage) {
  view.manage = manage;
  view.heads = COLUMNS.map((column, i) => {
    const button = make("button", { type: "button", click: () => sortBy(i) }, column.name);
    return make("th", { scope: "col", role: "columnheader", class: column.figure ? "figure" : null }, button);
  });
  const last = make("th", { scope: "col", role: "columnheader", class: "admin" }, hidden("span", "Manage"));
  view.body = make("tbody", { role: "rowgroup" });
  const head = make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, ...view.heads, last));
  const table = make("table", { role: "table", class: "clients" }, hidden("caption", "Clients"), head, view.body);
  find("clients").replaceChildren(table);
  find("sort").replaceChildren(...COLUMNS.map((column, i) => make("option", { value: i }, column.name)));
  find("kind").replaceChildren(...Object.keys(KINDS).map((kind) => make("option", {}, kind)));
  find("sort").addEventListener("change", (event) => sortBy(Number(event.target.value)));
  find("kind").addEventListener("change", () => restart());
  find("filter").addEventListener("input", () => restart());
  find("more").addEventListener("click", () => {
    view.shown += PAGE * 5;
    refresh();
  });
  markHeads();
}

export function emptyTable() {
  view.rows.clear();
  showClients([], { uptime: 0, now: 0 });
}

export function showClients(given, at) {
  view.given = given;
  view.at = at;
  refresh();
}

function sortBy(column) {
  view.down = view.by === column ? !view.down : false;
  view.by = column;
  find("sort").value = String(column);
  markHeads();
  restart();
}

function markHeads() {
  view.heads.forEach((head, i) => {
    if (i === view.by) head.setAttribute("aria-sort", view.down ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  });
}

function restart() {
  view.shown = PAGE;
  refresh();
}

function refresh() {
  const wanted = ordered(view.given.filter(KINDS[find("kind").value]).filter(matches(find("filter").value)));
  const rows = wanted.slice(0, view.shown);
  rows.forEach(fill);
  const order = rows.map((row) => row.client).join();
  if (order !== view.order) reorder(rows, order);
  const all = plural(view.given.length, "client");
  say(find("clients-count"), wanted.length === view.given.length ? all : `${count(wanted.length)} of ${all}`);
  show(find("more"), wanted.length > rows.length);
  say(find("more"), `Show more (${count(wanted.length - rows.length)} hidden)`);
  find("clients").classList.toggle("none", rows.length === 0);
}

function reorder(rows, order) {
  const focused = document.activeElement;
  view.order = order;
  view.body.replaceChildren(...rows.map((row) => view.rows.get(row.client).line));
  if (focused !== document.activeElement && view.body.contains(focused)) focused.focus();
}

function ordered(rows) {
  const { sort } = COLUMNS[view.by];
  const sign = view.down ? -1 : 1;
  return rows.toSorted((a, b) => sign * compare(sort(a), sort(b)) || a.client - b.client);
}

function compare(a, b) {
  const missing = [a, b].map((value) => value === null || value === undefined || Number.isNaN(value));
  if (missing[0] || missing[1]) return missing[0] - missing[1];
  return a < b ? -1 : a > b ? 1 : 0;
}

function matches(wanted) {
  const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
  return (row) => {
    const text = `${row.client} ${doing(row)} cluster ${row.cluster} ${note(row)}`.toLowerCase();
    const known = text.split(/\s+/);
    return words.every((word) => (/^\d+$/.test(word) ? known.includes(word) : text.includes(word)));
  };
}

function fill(row) {
  if (!view.rows.has(row.client)) view.rows.set(row.client, newLine(row.client));
  const { line, cells } = view.rows.get(row.client);
  COLUMNS.forEach((column, i) => {
    say(cells[i], column.say(row, view.at));
    const kind = `${column.figure ? "figure " : ""}${column.tone?.(row, view.at) ?? ""}`.trim();
    if (cells[i].className !== kind) cells[i].className = kind;
  });
  line.classList.toggle("held", Boolean(row.quarantined));
}

function newLine(client) {
  const [first, ...others] = COLUMNS;
  const name = make("th", { scope: "row", role: "rowheader", "data-label": first.name });
  const cells = [name, ...others.map((column) => make("td", { role: "cell", "data-label": column.name }))];
  const words = { type: "button", class: "quiet", "aria-label": `Manage client ${client}` };
  const button = make("button", { ...words, click: () => view.manage(client) }, "Manage");
  return { line: make("tr", { role: "row" }, ...cells, make("td", { role: "cell", class: "admin" }, button)), cells };
}

const hidden = (tag, words) => make(tag, { class: "hidden" }, words);
