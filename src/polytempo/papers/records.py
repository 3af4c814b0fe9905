"""What is kept of the runs of a benchmark: one line per run with the figures of its table's columns. The lines of a
recorded benchmark come with the package, so that its tables are written again without its runs."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
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


class Records:
    """The records of one benchmark: those published, and those of a file, to which new ones are added. Without a file
    they last as long as this object. A run is known by its table and its settings."""

    def __init__(self, published: Path | None = None, file: Path | None = None) -> None:
        self._file = file
        self._published = _read(published)
        self._known = {**_read(file), **self._published}

    def figures(self, table: str, experiment: Experiment) -> Figures | None:
        """None of a run that is not known."""
        record = self._known.get((table, settings_hash(experiment)))
        return None if record is None else record.figures

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
    rounded = {name: None if value is None else float(f"{value:.6g}") for name, value in figures.items()}
    e = experiment
    return Record(table, label, e.strategy, e.seed, settings_hash(e), rounded, run.config["versions"])


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
    ordered = sorted(records, key=lambda record: (record.table, record.label, record.seed, record.settings))
    known: list[Mapping[str, str]] = []
    lines = []
    for record in ordered:
        if record.versions not in known:
            known.append(record.versions)
        lines.append(json.dumps({**asdict(record), "versions": known.index(record.versions)}))
    return f'{{"versions": {json.dumps(known)},\n"records": [\n' + ",\n".join(lines) + "\n]}\n"
