// Figures in words.

export const NOTHING = "–";
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

export const count = (value) => (isNumber(value) ? whole.format(value) : NOTHING);

export const plural = (value, word, words = `${word}s`) => `${count(value)} ${value === 1 ? word : words}`;

export function rate(value) {
  if (!isNumber(value)) return NOTHING;
  return value >= 100 ? whole.format(value) : value.toFixed(value >= 10 ? 1 : 2);
}

export const percent = (value) => (isNumber(value) ? `${(100 * value).toFixed(1)} %` : NOTHING);

export function bytes(value) {
  if (!isNumber(value)) return NOTHING;
  const units = ["B", "KB", "MB", "GB", "TB"];
  const power = Math.min(Math.floor(Math.log(Math.max(value, 1)) / Math.log(1024)), units.length - 1);
  const scaled = value / 1024 ** power;
  return `${scaled.toFixed(power === 0 || scaled >= 100 ? 0 : 1)} ${units[power]}`;
}

export function seconds(value) {
  if (!isNumber(value)) return NOTHING;
  if (value < 0.0995) return `${(1000 * value).toFixed(value < 0.00995 ? 1 : 0)} ms`;
  return value < 9.95 ? `${value.toFixed(2)} s` : duration(value);
}

export function duration(value) {
  if (!isNumber(value)) return NOTHING;
  const s = Math.max(Math.round(value), 0);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

// The largest unit only, for places where many stand below each other.
export function brief(value) {
  if (!isNumber(value)) return NOTHING;
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const [name, size] = units.find(([, length]) => value >= length) ?? units.at(-1);
  return `${Math.floor(Math.max(value, 0) / size)} ${name}`;
}

export const ago = (value) => (isNumber(value) ? `${brief(value)} ago` : NOTHING);

export const clock = (date) => date.toLocaleTimeString([], { hour12: false });
