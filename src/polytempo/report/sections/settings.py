"""The report's section on what was run: the settings of all contenders, and in which they differ."""

from html import escape

from polytempo.report.facts.contenders import (
    as_text,
    by_name,
    differing,
    file_names,
    plain_name,
    proxy_settings,
    settings,
)
from polytempo.report.facts.numbers import NOTHING
from polytempo.report.facts.runs import Runs
from polytempo.report.sections.markup import Section, html_table, named


def section(runs: Runs) -> Section:
    """What all contenders share once, then what is particular to each; a setting in which they differ is
    highlighted."""
    of_contenders = _shown_settings(runs)
    of_world = [{key: text for key, text in s.items() if not key.startswith("parameters.")} for s in of_contenders]
    different = differing(of_world)
    shared = "".join(
        f"<div><dt>{escape(plain_name(key))}</dt><dd>{escape(text)}</dd></div>"
        for key, text in of_world[0].items()
        if key not in different and text
    )
    body = []
    for contender, mine in zip(runs.contenders, of_contenders, strict=True):
        parameters = ", ".join(
            f"{plain_name(key)} {text or 'none'}" for key, text in mine.items() if key.startswith("parameters.")
        )
        seeds = ", ".join(as_text(run.seed) for run in contender.runs)
        values = [f"<mark>{escape(mine.get(key) or 'none')}</mark>" for key in different]
        body.append([named(contender), escape(seeds), *values, escape(parameters or NOTHING)])
    table = html_table(["method", "seeds", *map(plain_name, different), "parameters"], body, numbers=False)
    return Section("What was run", [f'<dl class="settings">{shared}</dl>\n{table}'])


def lead(runs: Runs) -> str:
    """The line under the page's title: which contenders, and what of their world all of them share."""
    of_contenders = _shown_settings(runs)
    different = differing(of_contenders)
    shared = [
        words.format(of_contenders[0][key])
        for key, words in (
            ("data", "{}"),
            ("clients", "{} clients"),
            ("partition", "partition {}"),
            ("devices", "devices {}"),
        )
        if key not in different and of_contenders[0].get(key)
    ]
    names = ", ".join(contender.label for contender in runs.contenders)
    return f"<strong>{escape(names)}</strong>{escape(' · '.join(['', *shared]))}"


def _shown_settings(runs: Runs) -> list[dict[str, str]]:
    """The settings of each contender, files by their names, and which proxy sets its runs set aside."""
    names = file_names([run for contender in runs.contenders for run in contender.runs])
    return [
        {key: by_name(text, names) for key, text in (settings(contender.runs[0]) | proxy_settings(contender)).items()}
        for contender in runs.contenders
    ]
