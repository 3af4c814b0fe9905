"""Data of real clients: wearers of sensors, and recorded hearts. Each is an .npz like those of users, with owners."""

from collections.abc import Callable
from pathlib import Path

from polytempo.world.data.own import load_npz
from polytempo.world.data.sources import Download, Source, reading
from polytempo.world.dataset import Dataset

SUMMARIES = {
    "uci-har-inertial": "10,299 windows of raw smartphone motion by 30 wearers, 9 x 128, 6 activities",
    "wisdm-watch": "18,211 windows of a watch's motion by 50 wearers, 91 features, 18 activities (WISDM-51)",
    "mit-bih": "109,451 heartbeats of 48 records, 128 samples each, 5 kinds (MIT-BIH arrhythmia)",
}


def _loader(name: str) -> Callable[[Path], Dataset]:
    def load(data_dir: Path) -> Dataset:
        path = data_dir / f"{name}.npz"
        data = load_npz(path)
        with reading(path, "an .npz with x (samples x ...), y, users and classes"):
            if data.users is None:
                raise ValueError("it has no users")
        return data

    return load


SOURCES = {
    name: Source(summary, _loader(name), (f"{name}.npz",), (Download(f"{name}.npz"),))
    for name, summary in SUMMARIES.items()
}
