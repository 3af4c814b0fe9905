// The clusters and how they came about: splits end a cluster and begin its parts; an expansion begins one; a merge ends
// one in another.

import { draw, make } from "./dom.js";
import { nothing, text } from "./charts.js";
import { plural } from "./words.js";

const ROW = 38, STEP = 56, LEFT = 26, LABEL = 100;
const ENDED_SHOWN = 6; // merged clusters, the newest
export const TOO_MANY = 60;

export const tone = (cluster) => `tone-${Math.abs(Number(cluster) || 0) % 8}`;

export function family(splits, regroupings, sizes) {
  const clusters = new Map();
  const of = (number) => {
    if (!clusters.has(number)) {
      const size = sizes.get(number) ?? 0;
      clusters.set(number, { number, size, children: [], parent: null, ended: false, merged: null, at: 0 });
    }
    return clusters.get(number);
  };
  for (const number of sizes.keys()) of(number);
  for (const split of splits) {
    const whole = of(split.cluster);
    whole.ended = true;
    whole.size = split.clients.reduce((sum, part) => sum + part, 0);
    split.parts.forEach((part) => adopt(whole, of(part), split.at));
  }
  for (const it of regroupings) {
    if (it.kind === "expansion") adopt(of(it.source), of(it.target), it.at);
    else Object.assign(of(it.source), { ended: true, merged: it.target, size: it.clients, at: it.at });
  }
  return clusters;
}

function adopt(parent, child, at) {
  if (child.parent !== null || child === parent) return;
  child.parent = parent.number;
  child.at = at;
  parent.children.push(child);
}

export function drawTree(container, clusters) {
  const living = [...clusters.values()].filter((one) => !one.ended);
  if (!living.length) return nothing(container, "No clients yet.");
  if (living.length > TOO_MANY) return nothing(container, `${plural(living.length, "cluster")}, too many to draw.`);
  const { roots, folded } = pruned(clusters);
  const rows = { next: 0 };
  roots.forEach((root) => lay(root, 0, rows));
  const shown = roots.flatMap(descent);
  const depth = Math.max(...shown.map((one) => one.depth), 0);
  const step = Math.max(Math.min((container.clientWidth - LEFT - LABEL) / Math.max(depth, 1), 160), STEP);
  const width = Math.max(LEFT + depth * step + LABEL, container.clientWidth - 2);
  const height = Math.max(rows.next, 1) * ROW + 8;
  const sizes = living.map((one) => `${one.number} with ${plural(one.size, "client")}`);
  const words = `${plural(living.length, "cluster")}: ${sizes.join(", ")}`;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": words });
  const most = Math.max(...shown.map((one) => one.size), 1);
  for (const one of shown) {
    one.x = LEFT + one.depth * step;
    one.y = 4 + (one.row + 0.5) * ROW;
    one.r = 9 + 8 * Math.sqrt(one.size / most);
  }
  const at = new Map(shown.map((one) => [one.number, one]));
  for (const one of shown) {
    for (const child of one.children) if (at.has(child.number)) svg.append(edge(one, child, "edge"));
    if (one.merged !== null && at.has(one.merged)) svg.append(edge(one, at.get(one.merged), "edge merged"));
  }
  shown.forEach((one) => svg.append(node(one)));
  const ended = `and ${plural(folded, "cluster")} that ended in others`;
  const note = folded ? make("p", { class: "muted small" }, ended) : "";
  return container.replaceChildren(svg, note);
}

// Without clusters that ended and have nobody after them, but for the newest.
function pruned(clusters) {
  const lives = (one) => !one.ended || one.children.some(lives);
  const gone = [...clusters.values()].filter((one) => !lives(one)).sort((a, b) => b.at - a.at);
  const dropped = new Set(gone.slice(ENDED_SHOWN));
  for (const one of clusters.values()) one.children = one.children.filter((child) => !dropped.has(child));
  const isRoot = (one) => one.parent === null || dropped.has(clusters.get(one.parent));
  const roots = [...clusters.values()].filter((one) => !dropped.has(one) && isRoot(one));
  return { roots: roots.sort((a, b) => a.number - b.number), folded: dropped.size };
}

const descent = (one) => [one, ...one.children.flatMap(descent)];

function lay(one, depth, rows) {
  one.depth = depth;
  one.children.forEach((child) => lay(child, depth + 1, rows));
  if (one.children.length) one.row = (one.children[0].row + one.children.at(-1).row) / 2;
  else one.row = rows.next++;
}

function edge(from, to, kind) {
  const middle = (from.x + to.x) / 2;
  return draw("path", { class: kind, d: `M${from.x} ${from.y}C${middle} ${from.y} ${middle} ${to.y} ${to.x} ${to.y}` });
}

function node(one) {
  const group = draw("g", { class: `node ${tone(one.number)}${one.ended ? " ended" : ""}` });
  const fate = one.merged !== null ? `, merged into ${one.merged}` : one.ended ? ", split" : "";
  group.append(draw("title", {}, `Cluster ${one.number}: ${plural(one.size, "client")}${fate}`));
  group.append(draw("circle", { cx: one.x, cy: one.y, r: one.r }));
  group.append(text(one.x, one.y + 4, one.number, "middle", "number"));
  const words = one.merged !== null ? `into ${one.merged}` : plural(one.size, "client");
  if (!one.children.length) group.append(text(one.x + one.r + 6, one.y + 4, words, "start", "label"));
  return group;
}
