// Small charts as SVG, as wide as their place. Each says in words what it shows.

import { draw, make } from "./dom.js";
import { isNumber } from "./words.js";

const WIDEST = 72; // column

function place(container, height, words) {
  const width = Math.max(container.clientWidth, 120);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": words });
  container.replaceChildren(svg);
  return { svg, width };
}

export function nothing(container, words) {
  container.replaceChildren(make("p", { class: "muted empty" }, words));
}

const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

// A line that grows while one looks.
export function history(container, values, words) {
  const height = 56;
  const { svg, width } = place(container, height, words);
  const top = Math.max(...values, 1e-9) * 1.1;
  const step = width / Math.max(values.length - 1, 30);
  const from = width - step * (values.length - 1);
  const points = values.map((value, i) => [from + i * step, height - 3 - (value / top) * (height - 8)]);
  if (points.length < 2) return;
  const area = `${path(points)}L${width} ${height}L${points[0][0].toFixed(1)} ${height}Z`;
  const [x, y] = points.at(-1);
  svg.append(draw("path", { class: "area", d: area }), draw("path", { class: "line", d: path(points) }));
  svg.append(draw("circle", { class: "dot", cx: x - 3, cy: y, r: 3 }));
}

// Bars over classes: [{label, value, words}].
export function histogram(container, classes, words) {
  const height = 150, bottom = 22, top = 16;
  const { svg, width } = place(container, height, words);
  const most = Math.max(...classes.map((one) => one.value), 1);
  const step = Math.min(width / classes.length, WIDEST);
  const every = Math.ceil(34 / step);
  classes.forEach((one, i) => {
    const tall = (one.value / most) * (height - bottom - top);
    const x = i * step, y = height - bottom - tall;
    const size = { x: x + 1.5, y, width: Math.max(step - 3, 1), height: Math.max(tall, one.value ? 1.5 : 0) };
    svg.append(draw("rect", { class: "column", ...size, rx: 2 }, draw("title", {}, one.words)));
    if (one.value && step > 20) svg.append(text(x + step / 2, y - 4, one.value, "middle", "figure"));
    if (i % every === 0) svg.append(text(x + step / 2, height - 6, one.label, "middle"));
  });
  svg.append(draw("line", { class: "axis", x1: 0, x2: width, y1: height - bottom + 0.5, y2: height - bottom + 0.5 }));
}

// Mean within the band from least to most: [{mean, low, high}], shares from 0 to 1.
export function band(container, rows, words, span) {
  const height = 150, left = 46, bottom = 20, top = 8;
  const { svg, width } = place(container, height, words);
  const least = Math.max(Math.floor(Math.min(...rows.map((row) => row.low)) * 10) / 10, 0);
  const most = Math.max(Math.min(Math.ceil(Math.max(...rows.map((row) => row.high)) * 10) / 10, 1), least + 0.1);
  const y = (value) => top + (1 - (value - least) / (most - least)) * (height - bottom - top);
  const step = (width - left - 6) / Math.max(rows.length - 1, 30);
  const x = (i) => width - 6 - step * (rows.length - 1 - i);
  for (const share of [0, 0.5, 1]) {
    const value = least + share * (most - least);
    svg.append(draw("line", { class: "axis faint", x1: left, x2: width, y1: y(value), y2: y(value) }));
    svg.append(text(left - 6, y(value) + 4, `${Math.round(100 * value)} %`, "end"));
  }
  const high = rows.map((row, i) => [x(i), y(row.high)]);
  const low = rows.map((row, i) => [x(i), y(row.low)]);
  const mean = rows.map((row, i) => [x(i), y(row.mean)]);
  svg.append(draw("path", { class: "area", d: `${path([...high, ...low.toReversed()])}Z` }));
  svg.append(draw("path", { class: "line", d: path(mean) }));
  svg.append(draw("circle", { class: "dot", cx: mean.at(-1)[0], cy: mean.at(-1)[1], r: 3 }));
  svg.append(text(width - 6, height - 4, "now", "end"));
  if (width - 6 - x(0) > 90) svg.append(text(x(0), height - 4, span, "start"));
}

// Rows of a word, a bar and a figure.
export function bars(container, rows) {
  const most = Math.max(...rows.map((row) => row.value), 1);
  const list = make("ul", { class: "bars" });
  for (const row of rows) {
    const bar = make("span", { class: "bar-fill" });
    bar.style.width = `${(100 * row.value) / most}%`;
    const words = [make("span", {}, row.name), make("span", { class: "bar-place" }, bar), make("span", {}, row.figure)];
    list.append(make("li", {}, ...words));
  }
  container.replaceChildren(list);
}

// One bar of parts: [{name, value, tone}].
export function share(container, parts, words) {
  const total = parts.reduce((sum, part) => sum + part.value, 0);
  container.setAttribute("role", "img");
  container.setAttribute("aria-label", words);
  container.replaceChildren(
    ...parts.filter((part) => part.value).map((part) => {
      const piece = make("span", { class: `piece ${part.tone}` });
      piece.style.width = `${(100 * part.value) / total}%`;
      return piece;
    }),
  );
}

export function text(x, y, words, anchor, kind = "tick") {
  return draw("text", { x, y, "text-anchor": anchor, class: kind }, words);
}

// Numbers into at most so many classes of equal width, of whole numbers.
export function wholeClasses(values, most) {
  const largest = Math.max(...values, 0);
  const width = Math.max(Math.ceil((largest + 1) / most), 1);
  const length = Math.max(Math.ceil((largest + 1) / width), 1);
  const classes = Array.from({ length }, (_, i) => ({ from: i * width, value: 0 }));
  for (const value of values) classes[Math.floor(Math.max(value, 0) / width)].value += 1;
  return classes.map(({ from, value }) => {
    const label = width === 1 ? String(from) : `${from}–${from + width - 1}`;
    return { label: String(from), value, words: `${label}: ${value}` };
  });
}

// Shares from 0 to 1 in ten classes.
export function tenths(values) {
  const classes = Array.from({ length: 10 }, (_, i) => ({ label: `${10 * i} %`, value: 0, words: "" }));
  for (const value of values.filter(isNumber)) classes[Math.min(Math.max(Math.floor(10 * value), 0), 9)].value += 1;
  classes.forEach((one, i) => (one.words = `${10 * i} to ${10 * i + 10} %: ${one.value}`));
  return classes;
}
