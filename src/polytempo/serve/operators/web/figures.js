// Headline figures and charts.

import { band, bars, histogram, history, nothing, share, tenths, wholeClasses } from "./charts.js";
import { doing } from "./clients.js";
import { find, make, say } from "./dom.js";
import { TOO_MANY, drawTree, family, tone } from "./tree.js";
import { NOTHING, bytes, count, duration, isNumber, percent, plural, rate, seconds } from "./words.js";

const KEPT = 450; // points of a history: a quarter of an hour
const DOING = ["training", "ready", "paused", "away", "quarantined"];
const BRANCHES_SHOWN = 60;

let seen = { written: 0, rates: [], accuracy: [], times: [] };

export function forgetFigures() {
  seen = { written: 0, rates: [], accuracy: [], times: [] };
}

export function showFigures(status) {
  const accuracies = status.clients.map((row) => row.accuracy).filter(isNumber);
  remember(status, accuracies);
  headline(status, accuracies);
  clientsFigure(status.clients);
  accuracy(accuracies);
  staleness(status.clients.map((row) => row.staleness).filter(isNumber));
  refusals(status.refusals);
  const sizes = sizesOf(status.clients);
  drawTree(find("tree"), family(status.splits ?? [], status.regroupings ?? [], sizes));
  branches(status.branches, sizes, status.clients.length);
}

function remember(status, accuracies) {
  if (status.written === seen.written) return;
  seen.written = status.written;
  keep(seen.times, status.written);
  keep(seen.rates, status.updates_per_second ?? 0);
  if (accuracies.length) keep(seen.accuracy, summary(accuracies));
}

function keep(list, value) {
  list.push(value);
  if (list.length > KEPT) list.shift();
}

function summary(values) {
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  return { mean, low: Math.min(...values), high: Math.max(...values) };
}

function figure(name, value, sub, kind = "") {
  const card = find(`figure-${name}`);
  say(card.querySelector(".value"), value);
  if (card.querySelector(".sub")) say(card.querySelector(".sub"), sub);
  card.classList.toggle("bad", kind === "bad");
}

function headline(status, accuracies) {
  const span = duration(seen.times.at(-1) - seen.times[0]);
  const most = `the last ${span}, at most ${rate(Math.max(...seen.rates))}`;
  figure("rate", rate(status.updates_per_second), seen.times.length > 1 ? most : "a line grows here while you look");
  history(find("figure-rate").querySelector(".chart"), seen.rates, `Updates per second over ${span}`);
  figure("updates", count(status.updates), `${bytes(status.bytes?.in)} in, ${bytes(status.bytes?.out)} out`);
  const { mean, low, high } = summary(accuracies);
  if (accuracies.length) figure("accuracy", percent(mean), `${percent(low)} to ${percent(high)}`);
  else figure("accuracy", NOTHING, "no client reports one");
  figure("latency", seconds(status.requests?.p99), `median ${seconds(status.requests?.p50)}`);
  const held = status.clients.filter((row) => row.quarantined).length;
  figure("quarantine", count(held), held ? "ignored until released" : "nobody", held ? "bad" : "");
  figure("memory", bytes(status.memory_bytes), `process ${status.process ?? NOTHING}`);
  figure("journal", bytes(status.journal?.bytes), plural(status.journal?.events ?? 0, "event"));
}

function clientsFigure(clients) {
  const card = find("figure-clients");
  const connected = clients.filter((row) => row.connected).length;
  say(card.querySelector(".value"), `${count(connected)} of ${count(clients.length)}`);
  const parts = DOING.map((name) => ({ name, value: clients.filter((row) => doing(row) === name).length, tone: name }));
  share(card.querySelector(".share"), parts, parts.map((part) => `${part.value} ${part.name}`).join(", "));
  const shown = parts.filter((part) => part.name !== "quarantined" || part.value);
  const legend = shown.map((part) => make("li", { class: part.tone }, `${count(part.value)} ${part.name}`));
  card.querySelector(".legend").replaceChildren(...legend);
}

function accuracy(accuracies) {
  if (!accuracies.length) {
    nothing(find("accuracy-time"), "No client has reported an accuracy.");
    nothing(find("accuracy-now"), NOTHING);
    return;
  }
  const span = duration(seen.times.at(-1) - seen.times.at(-seen.accuracy.length));
  const words = `Mean accuracy ${percent(summary(accuracies).mean)}, with the least and the most, over ${span}`;
  band(find("accuracy-time"), seen.accuracy, words, `${span} ago`);
  histogram(find("accuracy-now"), tenths(accuracies), `Accuracy of ${plural(accuracies.length, "client")} in tenths`);
}

function staleness(values) {
  if (!values.length) return nothing(find("staleness"), "No updates yet.");
  const words = `Staleness of ${plural(values.length, "client")}, at most ${Math.max(...values)}`;
  return histogram(find("staleness"), wholeClasses(values, 16), words);
}

function refusals(kinds) {
  const ordered = Object.entries(kinds ?? {}).sort((a, b) => b[1] - a[1]);
  const rows = ordered.map(([name, value]) => ({ name, value, figure: count(value) }));
  if (rows.length) bars(find("refusals"), rows);
  else nothing(find("refusals"), "Nothing.");
}

function sizesOf(clients) {
  const sizes = new Map();
  for (const row of clients) if (isNumber(row.cluster)) sizes.set(row.cluster, (sizes.get(row.cluster) ?? 0) + 1);
  return sizes;
}

// A branch of a cluster ends in the cluster's number; a lone branch is everybody's.
function branches(versions, sizes, everybody) {
  const rows = Object.entries(versions ?? {});
  if (!rows.length) return nothing(find("branches"), "This method does not number its models.");
  const lines = rows.slice(0, BRANCHES_SHOWN).map(([name, version]) => {
    const members = rows.length === 1 ? everybody : (sizes.get(numberOf(name)) ?? 0);
    const kind = rows.length > 1 && rows.length <= TOO_MANY ? `cluster ${tone(numberOf(name))}` : null;
    const head = make("th", { scope: "row", class: kind }, title(name));
    return make("tr", {}, head, cell("td", count(version)), cell("td", count(members)));
  });
  const heads = [make("th", { scope: "col" }, "Branch"), cell("th", "Version"), cell("th", "Clients")];
  const caption = make("caption", { class: "hidden" }, "Branches");
  const table = make("table", {}, caption, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...lines));
  const left = rows.length - lines.length;
  const more = left ? make("p", { class: "muted small" }, `and ${plural(left, "branch", "branches")}`) : "";
  return find("branches").replaceChildren(table, more);
}

const cell = (tag, words) => make(tag, { class: "figure", scope: tag === "th" ? "col" : null }, words);

const title = (name) => name.replace(/^clusters\.branches\.(\d+)$/, "Cluster $1");

const numberOf = (name) => Number(name.match(/(\d+)(?!.*\d)/)?.[1] ?? 0);
