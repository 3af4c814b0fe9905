"""The style sheet of the report. Colours are variables, so that the figures follow the page into dark mode."""

CSS = """
:root { color-scheme: light dark; --ink: #24292f; --soft: #57606a; --grid: #dfe3e8; --page: #fff; --mark: #fff3c4; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ed; --soft: #a3abb5; --grid: #3a424c; --page: #15191e; --mark: #574a12; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1160px; margin: 0 auto; padding: 24px 16px 48px; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 36px 0 10px; padding-bottom: 4px; border-bottom: 1px solid var(--grid); }
h3 { font-size: 1rem; margin: 28px 0 10px; }
.lead, .note, figcaption { color: var(--soft); }
.lead { margin: 0; overflow-wrap: anywhere; }
.lead strong { color: var(--ink); }
.note, figcaption { font-size: .86rem; margin: 8px 0 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .86rem; min-width: 100%; }
th, td { padding: 6px 8px; text-align: left; border-bottom: 1px solid var(--grid); vertical-align: top; }
thead th { font-weight: 600; color: var(--soft); vertical-align: bottom; }
tbody th { font-weight: 600; white-space: nowrap; position: sticky; left: 0; background: var(--page); }
.numbers td, .numbers thead th:not(:first-child) { text-align: right; font-variant-numeric: tabular-nums; }
.numbers td { white-space: nowrap; }
.numbers td.words, .numbers thead th.words { white-space: normal; text-align: left; min-width: 15em; }
.numbers thead th.long { min-width: 7em; }
mark { background: var(--mark); color: inherit; padding: 1px 5px; border-radius: 3px; }
.dot { display: inline-block; width: .7em; height: .7em; border-radius: 50%; margin-right: .5em; }
.settings { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 8px 20px;
  margin: 0 0 16px; }
.settings dt { font-size: .8rem; color: var(--soft); }
.settings dd { margin: 0; overflow-wrap: anywhere; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: 28px 36px;
  align-items: start; }
.note + .figures { margin-top: 24px; }
.figures > * { min-width: 0; max-width: 600px; }
details { margin-top: 12px; }
summary { cursor: pointer; color: var(--soft); }
figure { margin: 0; }
figure.wide { margin-bottom: 28px; }
figure svg { display: block; width: 100%; height: auto; }
figure.wide svg { min-width: 720px; }
figure svg text { font-family: inherit !important; }
@media print { figure, tr { break-inside: avoid; } main { max-width: none; } }
"""
