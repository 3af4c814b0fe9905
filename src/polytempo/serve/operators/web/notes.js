// Events of note: what the server tells of its clusters, and what changed while one looked.

import { find, make } from "./dom.js";
import { clock, duration, plural } from "./words.js";

const KEPT = 200, TOLD_AT_FIRST = 12;
const ONE_BY_ONE = 5; // clients at once; of more only the number is told
let events = [];

export function forget() {
  events = [];
  render();
}

export function add(words, kind = "", when = clock(new Date())) {
  events.unshift({ words, kind, when });
  events.length = Math.min(events.length, KEPT);
  render();
}

// What there was when one came.
export function begin(now) {
  for (const it of clusterEvents(now).slice(-TOLD_AT_FIRST)) add(it.words, "cluster", `uptime ${duration(it.at)}`);
  aboutClients(now.clients.filter((row) => row.quarantined), held, "are in quarantine", "bad", "earlier");
}

export function compare(before, now) {
  const restarted = before.process !== now.process;
  if (restarted) add(`The server was restarted (process ${now.process})`, "warn");
  if (!before.draining && now.draining) add("The server is draining: it finishes what it has, and stops", "warn");
  const told = new Set(clusterEvents(before).map((it) => it.words));
  for (const it of clusterEvents(now).filter((one) => !told.has(one.words))) add(it.words, "cluster");
  compareClients(new Map(before.clients.map((row) => [row.client, row])), now.clients);
  if (!restarted) compareRefusals(before.refusals, now.refusals);
}

function compareClients(known, rows) {
  const old = (row) => known.get(row.client);
  aboutClients(rows.filter((row) => !old(row)), (row) => `Client ${row.client} is new`, "are new");
  aboutClients(rows.filter((row) => row.quarantined && !old(row)?.quarantined), held, "are in quarantine", "bad");
  const released = rows.filter((row) => !row.quarantined && old(row)?.quarantined);
  aboutClients(released, (row) => `Client ${row.client} was released from quarantine`, "were released from quarantine");
}

const held = (row) => `Client ${row.client} is in quarantine: ${row.quarantined}`;

function compareRefusals(before, now) {
  for (const [kind, times] of Object.entries(now)) {
    const more = times - (before[kind] ?? 0);
    if (more > 0) add(`${plural(more, "refusal")} of kind ${kind}`, "warn");
  }
}

function aboutClients(rows, words, together, kind, when) {
  if (rows.length > ONE_BY_ONE) add(`${plural(rows.length, "client")} ${together}`, kind, when);
  else rows.forEach((row) => add(words(row), kind, when));
}

function clusterEvents(status) {
  const into = (it) => `Cluster ${it.cluster} split into ${it.parts.join(", ")}`;
  const splits = (status.splits ?? []).map((it) => ({ at: it.at, words: into(it) }));
  const moves = (status.regroupings ?? []).map((it) => ({ at: it.at, words: regrouped(it) }));
  return [...splits, ...moves].sort((a, b) => a.at - b.at);
}

function regrouped(it) {
  if (it.kind === "merge") return `Cluster ${it.source} was merged into ${it.target}`;
  return `Cluster ${it.target} began with ${plural(it.clients, "client")} of ${it.source}`;
}

function render() {
  const nothing = "Nothing yet. Splits, quarantines, refusals and restarts appear here.";
  const line = (it) => make("li", { class: it.kind || null }, make("time", {}, it.when), make("span", {}, it.words));
  find("events").replaceChildren(...(events.length ? events.map(line) : [make("li", { class: "muted" }, nothing)]));
}
