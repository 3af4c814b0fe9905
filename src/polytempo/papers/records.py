"""What is kept of the runs of a benchmark: one line per run with the figures of its table. The lines come with the
package, so that tables are written, and claims judged, without running anything."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path

from polytempo.core.errors import UserError
from polytempo.report.run import Run
from polytempo.sim.directory import config_of, plain
from polytempo.sim.experiment import Experiment
from polytempo.strategies import make_strategy
from polytempo_client.disk.files import write_bytes
from polytempo_client.disk.locks import locked

Figures = Mapping[str, float | None]
"""By the names of columns: figures of a run, before they are scaled or divided."""
Measured = Mapping[str, Mapping[int, Figures]]
"""The figures of the runs of each row, by label and seed."""
PUBLISHED = Path(__file__).parent / "results"
"""The records that come with the package, a file per benchmark."""
DIGITS = 16
"""Of a run's digest, which has 64: enough to tell runs apart."""


def settings_hash(experiment: Experiment) -> str:
    """Of everything that decides a run but versions: its settings, the parameters that are not at their defaults, and
    the revisions of its method and of what is around it."""
    config = config_of(experiment)
    defaults = {name: plain(value) for name, value in make_strategy(experiment.strategy, {}).parameters().items()}
    decides = {name: value for name, value in config.items() if name != "versions"} | {
        "parameters": {name: value for name, value in config["parameters"].items() if value != defaults[name]},
        "revisions": [part.revision for part in experiment.make().stack()],
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Record:
    """One run."""

    table: str
    label: str
    strategy: str
    seed: int
    settings: str
    """The hash of its settings, the seed among them."""
    figures: Figures
    versions: Mapping[str, str]
    """What it was run with."""
    digest: str | None = None
    """The beginning of the run's digest: with equal versions, a run made again has the same."""
    seconds: float | None = None
    """What the run took. Other programs may have run beside it."""
    flat: bool = False
    """Was it stopped because its curve had been flat for a fifth of its length?"""

    def same_versions(self, other: "Record") -> bool:
        """Were both run with the same versions on the same kind of machine, so that equal seeds have equal bits?"""
        return dict(self.versions) == dict(other.versions)


class Records:
    """The records of one benchmark: those published, and those of a file, to which new ones are added. Without a file
    they last as long as this object. A run is known by its table and its settings."""

    def __init__(self, published: Path | None = None, file: Path | None = None) -> None:
        self._file = file
        self._published = _read(published)
        self._known = {**_read(file), **self._published}

    def record(self, table: str, experiment: Experiment) -> Record | None:
        """None of a run that is not known."""
        return self._known.get((table, settings_hash(experiment)))

    def figures(self, table: str, experiment: Experiment) -> Figures | None:
        """Those of a run; None of one that is not known."""
        record = self.record(table, experiment)
        return None if record is None else record.figures

    def all(self) -> list[Record]:
        """By table, row and seed."""
        return sorted(self._known.values(), key=_place)

    def add(self, record: Record) -> None:
        """Keep a record, also in the file, to which others may be adding as well."""
        self._known[record.table, record.settings] = record
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with locked(self._file.with_suffix(".lock"), mode=0o644):
                self._known = {**_read(self._file), **self._published, (record.table, record.settings): record}
                write_bytes(self._file, _text(self._known.values()).encode())


def record_of(table: str, label: str, experiment: Experiment, run: Run, figures: Figures) -> Record:
    """A finished run, its figures to six digits."""
    return Record(
        table=table,
        label=label,
        strategy=experiment.strategy,
        seed=experiment.seed,
        settings=settings_hash(experiment),
        figures={name: None if value is None else float(f"{value:.6g}") for name, value in figures.items()},
        versions=run.config["versions"],
        digest=run.digest[:DIGITS],
        seconds=round(run.wall_seconds, 1),
        flat=was_flat(experiment, run),
    )


def was_flat(experiment: Experiment, run: Run) -> bool:
    """Did the run stop because its curve was flat, before its planned updates, time or target?"""
    if experiment.patience is None:
        return False
    used, past = run.over_evaluations("accuracy_used"), experiment.patience
    complete = (experiment.updates is not None and run.updates >= experiment.updates) or (
        experiment.time is not None and run.virtual_time >= experiment.time
    )
    return not complete and len(used) > past and not run.scale.better(used[-past:].max(), used[:-past].max())


def _place(record: Record) -> tuple[str, str, int, str]:
    return record.table, record.label, record.seed, record.settings


def _read(path: Path | None) -> dict[tuple[str, str], Record]:
    if path is None or not path.exists():
        return {}
    try:
        content = json.loads(path.read_text())
        records = [Record(**{**row, "versions": content["versions"][row["versions"]]}) for row in content["records"]]
    except (ValueError, TypeError, LookupError) as error:
        raise UserError(f"{path} holds no records of a benchmark ({error}). Restore it, or delete it.") from None
    return {(record.table, record.settings): record for record in records}


def _text(records: Iterable[Record]) -> str:
    """One line per record, by table, row and seed; versions, which most records share, apart."""
    known: list[Mapping[str, str]] = []
    lines = []
    for record in sorted(records, key=_place):
        if record.versions not in known:
            known.append(record.versions)
        said = {name: value for name, value in asdict(record).items() if value != OPTIONAL.get(name, ...)}
        lines.append(json.dumps({**said, "versions": known.index(record.versions)}))
    return f'{{"versions": {json.dumps(known)},\n"records": [\n' + ",\n".join(lines) + "\n]}\n"


OPTIONAL = {field.name: field.default for field in fields(Record) if field.default is not MISSING}
"""What a record leaves out where it is the default."""
