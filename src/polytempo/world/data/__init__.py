"""Data sets by name, by path, or from the user's own function."""

from pathlib import Path

from polytempo.core.errors import UserError
from polytempo.world.data import agnews, cifar, digits, femnist, idx, motion, natural
from polytempo.world.data.own import load_callable, load_csv, load_folder, load_npz
from polytempo.world.data.sources import Source, datasets, default_data_dir, expanded, files_wanted
from polytempo.world.dataset import Dataset, Labels
from polytempo_client.imports import unknown

__all__ = ["Source", "data_file", "datasets", "default_data_dir", "load_dataset"]

for _module in (digits, idx, cifar, femnist, motion, natural, agnews):
    for _name, _source in _module.SOURCES.items():
        datasets.add(_name, _source)


_LOADERS = {".npz": load_npz, ".csv": load_csv}


def load_dataset(name: str, data_dir: Path | None = None, labels: Labels = "classes") -> Dataset:
    """A known data set from the data directory, or the user's own: the path of an .npz, a .csv or a folder of images,
    or ``package.module:function``. ``labels`` says what those of the user's own data are."""
    if not name:
        raise UserError(unknown("data set", name, datasets))
    if name in datasets:
        return _load_known(name, data_dir or default_data_dir())
    path = expanded(Path(name))
    if path.is_dir():
        return load_folder(path)
    if path.suffix.lower() in _LOADERS:
        if not path.exists():
            raise UserError(f"There is no data file {path.absolute()}.")
        return _LOADERS[path.suffix.lower()](path, labels)
    if ":" in name:
        return load_callable(name, labels)
    raise UserError(
        unknown("data set", name, datasets) + " Or your own: a path to an .npz, a .csv or a folder of images, "
        "or package.module:function."
    )


def data_file(name: str) -> Path | None:
    """The path, if the name is that of the user's own .npz or .csv."""
    path = Path(name)
    return expanded(path) if name not in datasets and path.suffix.lower() in _LOADERS else None


def _load_known(name: str, data_dir: Path) -> Dataset:
    source = datasets[name]
    try:
        return source.load(expanded(data_dir))
    except FileNotFoundError as error:
        get = f"\nOr, with a mirror of the data sets: polytempo data get {name}" if source.downloads else ""
        raise UserError(
            f"Data set {name!r} is not there: {error.filename} is missing. Put these files in place, "
            f"or name another folder with --data-dir or POLYTEMPO_DATA:\n{files_wanted(source, data_dir)}{get}"
        ) from error
