"""The run directory: what a run leaves, and what a later one may continue or must not overwrite."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from torch import Tensor

from polytempo.core.disk.files import write_whole
from polytempo.core.disk.tensor_file import write_tensors
from polytempo.core.errors import DISK_ERRORS, PassingError, UserError
from polytempo.core.given import Given
from polytempo.core.state import load
from polytempo.core.versions import versions
from polytempo.sim.experiment import LATER, Experiment
from polytempo.sim.records.used import USED
from polytempo.strategies import Strategy
from polytempo_client.disk.files import write_bytes
from polytempo_client.disk.locks import LockedError, locked
from polytempo_client.disk.reading import open_plain, read_plain

LOCK = "lock"
CHECKPOINT = "checkpoint.safetensors"
MODELS = {"served": "models.safetensors", "own": "own_models.safetensors", "used": "used_models.safetensors"}
"""What a run leaves, one model for each client (``sim/kept_models.py``)."""
RESULT = "result.json"
SPLITS = "splits.jsonl"
REGROUPINGS = "regroupings.jsonl"
SIMILARITY = "similarity.npy"


def config_of(experiment: Experiment, strategy: Strategy | None = None) -> dict[str, Any]:
    """Everything that decides a run: settings, the strategy's parameters in full, what files hold and what objects are,
    versions. ``strategy`` is that of the experiment, where it is made already."""
    made = experiment.bare() if strategy is None else strategy
    parameters, given = made.parameters(), experiment.objects()
    return {
        **experiment.settings(),
        "parameters": {name: plain(value) for name, value in parameters.items()},
        "files": experiment.files(),
        **(_facts(given) if given else {}),
        "versions": versions(),
    }


def _facts(given: Mapping[str, Given]) -> dict[str, Any]:
    """What config.json says of objects that no file can hold."""
    names = ", ".join(sorted(given))
    facts = {setting: dict(of.facts) for setting, of in given.items()}
    return {"objects": facts, "resume": f"from Python only, with the same objects: {names}"}


def is_finished(experiment: Experiment, directory: Path) -> bool:
    """Does a finished run with these settings lie in the directory?"""
    if not (directory / RESULT).exists() or (directory / CHECKPOINT).exists():
        return False
    _check_same(directory, config_of(experiment))
    return True


@contextmanager
def claimed(directory: Path | None) -> Iterator[None]:
    """Keep other runs out of the directory while the block writes a run there. A disk that is full is one message."""
    if directory is None:
        yield
        return
    with ExitStack() as stack:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(directory / LOCK, seconds=0, mode=0o644))
        except LockedError:
            raise PassingError(
                f"Another process is writing a run to {directory}. Wait until it ends, or choose another --out."
            ) from None
        except OSError as error:
            raise unwritable(directory, error) from None
        try:
            yield
        except OSError as error:
            if error.errno not in DISK_ERRORS:
                raise
            raise unwritable(directory, error) from None


def unwritable(directory: Path, error: OSError) -> UserError:
    """What to tell the user when a run cannot be written."""
    what = f"Cannot write the run to {directory}: {error.strerror or error}."
    if error.errno in DISK_ERRORS:
        return PassingError(
            f"{what} Make room, then start it again: it goes on from its last checkpoint, if it has one."
        )
    return UserError(f"{what} Choose another --out.")


def prepare(directory: Path, config: dict[str, Any]) -> dict[str, Any] | None:
    """Make a claimed directory ready; the checkpoint to go on from, if a run with these settings was cut off there."""
    try:
        begun = (directory / CHECKPOINT).exists() or (directory / RESULT).exists()
        others = any(path.name != LOCK for path in directory.iterdir())
        if begun or (others and not (directory / "evaluations.jsonl").exists()):
            known = _check_same(directory, config)
            if (directory / CHECKPOINT).exists():
                if known["versions"] != config["versions"]:
                    raise _from_elsewhere(directory)
                return _checkpoint(directory)
        for left_over in (RESULT, *MODELS.values(), SPLITS, REGROUPINGS, SIMILARITY, USED):
            (directory / left_over).unlink(missing_ok=True)
        write_json(directory / "config.json", config)
    except OSError as error:
        raise unwritable(directory, error) from None
    return None


def _checkpoint(directory: Path) -> dict[str, Any]:
    try:
        open_plain(directory / CHECKPOINT).close()
        saved: dict[str, Any] = load(directory / CHECKPOINT)
        return saved
    except LookupError:  # a class that only another version of the code has
        raise _from_elsewhere(directory) from None
    except (OSError, SafetensorError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"The checkpoint in {directory} cannot be read: {error}. Choose another --out, or delete it to begin anew."
        ) from None


def _from_elsewhere(directory: Path) -> UserError:
    return UserError(
        f"The run in {directory} was begun with other package versions or another CPU and cannot be continued bit for "
        "bit. Choose another --out, or delete it to begin anew."
    )


def _check_same(directory: Path, config: dict[str, Any]) -> dict[str, Any]:
    """The configuration of the run in the directory, which must be the same but for versions."""
    try:
        known: dict[str, Any] = json.loads(read_plain(directory / "config.json"))
        names = [name for name in config if name != "versions" and (name, config[name]) != ("clients", None)]
        unlike = [name for name in LATER if known.get(name) != config.get(name)]
        unlike += [name for name in names if name not in LATER and known[name] != config[name]]
        different = next(iter(unlike), None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{directory} is not empty and holds no run. Choose another directory (--out).") from None
    if different is not None:
        there, here = known.get(different), config.get(different)
        if isinstance(there, dict) and isinstance(here, dict):  # the strategy's parameters, say: only those that differ
            changed = [name for name in here if there.get(name) != here[name]]
            there, here = ({name: of[name] for name in changed if name in of} for of in (there, here))
        raise UserError(
            f"{directory} holds another run ({different} is {there!r} there, {here!r} here). {_only_from_python(known)}"
            "Choose another --out, or delete it."
        )
    return known


def _only_from_python(config: Mapping[str, Any]) -> str:
    """What to know of a run whose settings are objects, which no file holds."""
    given = ", ".join(config.get("objects") or ())
    return f"Its {given} came as Python objects: it goes on from Python only, with the same objects. " if given else ""


def write_clusters(
    directory: Path,
    splits: Sequence[Mapping[str, Any]],
    regroupings: Sequence[Mapping[str, Any]],
    similarity: np.ndarray | None,
) -> None:
    """How the clusters came about: one row per split and per regrouping, if there were any, and how alike the clients
    are where the method knows it."""
    _write_rows(directory / SPLITS, splits)
    if regroupings:
        _write_rows(directory / REGROUPINGS, regroupings)
    if similarity is not None:
        content = BytesIO()  # because numpy says of a full disk only how many bytes it took
        np.save(content, similarity)
        write_bytes(directory / SIMILARITY, content.getvalue())


def _write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    write_bytes(path, "".join(json.dumps(row) + "\n" for row in rows).encode(), durable=False)


def write_models(directory: Path, kept: Mapping[str, Mapping[str, Tensor]]) -> None:
    """The models of the clients by kind, each by the names of their tensors."""
    for which, models in kept.items():
        write_whole(directory / MODELS[which], partial(_write_tensors, models))


def _write_tensors(models: Mapping[str, Tensor], path: Path) -> None:
    write_tensors(path, models)


def write_json(path: Path, value: object) -> None:
    write_bytes(path, json.dumps(value, indent=1).encode() + b"\n", durable=False)


def plain(value: object) -> Any:
    """A parameter's value as config.json holds it."""
    return value if value is None or isinstance(value, bool | int | float | str | list | dict) else str(value)
