"""The presets of every registered strategy: they are listed, they load, they are written down, and runs with them go on
where they were cut."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from polytempo.cli.listing import TABLES
from polytempo.report.run import Run
from polytempo.serve.journal.settings import make_settings
from polytempo.sim.directory import MODELS, plain
from polytempo.sim.experiment import read_experiment
from polytempo.sim.run import run_experiment
from polytempo.strategies import make_strategy, strategies
from support.plugs import PulledPlugError, pulled_after

SMALL = 'data = "digits"\nclients = 6\nupdates = 30\neval_every = 10\nengine = "eager"\n'
WITH_PROXIES = 'partition = "rotations:2"\nproxies = 5\n'


def field_of(name: str) -> Any:
    """The parameter ``preset`` of a strategy; None if it has none."""
    settings: Any = strategies[name]
    return settings.__pydantic_fields__.get("preset")


ALL = [(name, value) for name in strategies if field_of(name) for value in get_args(field_of(name).annotation)]
every_preset = pytest.mark.parametrize(("name", "preset"), ALL)


def sets(name: str, preset: str) -> dict[str, Any]:
    """The parameters that a preset sets."""
    return dict(strategies[name].presets.get(preset, {}))


def written(directory: Path, name: str, preset: str) -> Path:
    """An experiment file that names a preset."""
    proxies = WITH_PROXIES if strategies[name].needs_proxies else ""
    path = directory / "experiment.toml"
    path.write_text(f'strategy = "{name}"\n{SMALL}{proxies}[parameters]\npreset = "{preset}"\n')
    return path


def test_the_presets_of_these_strategies_are_tried() -> None:
    papers = {(name, "paper") for name in ("casa", "casa+", "casa-d", "cdfl", "echopfl", "fedsoft-async", "port")}
    assert papers | {("port", "plato")} <= set(ALL)
    assert [name for name, cls in strategies.items() if cls.presets and not field_of(name)] == []


@every_preset
def test_a_preset_that_is_not_the_usual_one_sets_parameters(name: str, preset: str) -> None:
    assert preset == field_of(name).default or sets(name, preset)


@every_preset
def test_a_presets_values_are_listed(name: str, preset: str) -> None:
    text = dict(TABLES["strategies"]())[name]
    (line,) = [line for line in text.splitlines() if line.startswith("  preset = ")]
    assert preset in line
    for field, value in sets(name, preset).items():
        (told,) = [line for line in text.splitlines() if line.startswith(f"  preset={preset} sets ")]
        assert f"{field} = {'unset' if value is None else value}" in told


@every_preset
def test_what_a_preset_sets_is_a_parameter_and_what_is_given_beside_it_wins(
    name: str, preset: str, tmp_path: Path
) -> None:
    file = written(tmp_path, name, preset)
    usual = make_strategy(name, {}).parameters()
    made = read_experiment(file, {}, {}).make().parameters()
    assert made == {**usual, **{field: made[field] for field in sets(name, preset)}, "preset": preset}
    for field, value in sets(name, preset).items():
        assert plain(made[field]) == plain(value)
        assert read_experiment(file, {field: usual[field]}, {}).make().parameters() == {**made, field: usual[field]}


@every_preset
def test_a_run_with_a_preset_says_what_was_set_and_loads_again(name: str, preset: str, tmp_path: Path) -> None:
    run_experiment(read_experiment(written(tmp_path, name, preset), {}, {"updates": 8}), tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["parameters"]["preset"] == preset
    assert {field: config["parameters"][field] for field in sets(name, preset)} == {
        field: plain(value) for field, value in sets(name, preset).items()
    }
    run = Run.load(tmp_path / "run")
    assert (run.updates, run.config["parameters"]) == (8, config["parameters"])
    again = make_strategy(name, config["parameters"]).parameters()
    assert {field: plain(value) for field, value in again.items()} == config["parameters"]


@every_preset
def test_a_run_with_a_preset_that_was_cut_ends_with_the_same_bits(
    name: str, preset: str, tmp_path: Path, every_event: None
) -> None:
    experiment = read_experiment(written(tmp_path, name, preset), {}, {})
    run_experiment(experiment, tmp_path / "whole")
    for events in (9, 14):
        with pytest.raises(PulledPlugError):
            run_experiment(experiment, tmp_path / "cut", pulled_after(events), checkpoint_seconds=0)
    run_experiment(experiment, tmp_path / "cut")
    for file in (MODELS["served"], MODELS["own"], "config.json", "evaluations.jsonl", "updates.jsonl", "marks.jsonl"):
        assert (tmp_path / "cut" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


@every_preset
def test_a_service_with_a_preset_has_the_same_parameters_after_a_restart(name: str, preset: str) -> None:
    settings = make_settings(strategy=name, parameters={"preset": preset}, model="mlp", data="digits")
    restarted = make_settings(**json.loads(json.dumps(settings.lasting())))
    expected = make_strategy(name, {"preset": preset}).parameters()
    assert settings.make().parameters() == restarted.make().parameters() == expected
