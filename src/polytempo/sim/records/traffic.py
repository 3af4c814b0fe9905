"""What travels: models down to clients and updates up from them, in all and at every moment of virtual time."""

from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

from polytempo.sim.records.history import History, Row

MINUTE = 60.0


class Traffic:
    """Counts transfers and writes one row per moment to the history. An upload counts when it arrives, a download when
    it is sent, also one that will come too late. The moment that is going on is state and no row yet: rows are never
    changed, so a run can be cut off in the middle of a moment."""

    def __init__(self, history: History, model_bytes: int) -> None:
        self.history = history
        self.model_bytes = model_bytes
        """0 where models do not travel. Only ``multicasts`` is counted then."""
        self.bytes_up = 0
        self.bytes_down = 0
        self.uploads = 0
        self.downloads = 0
        self.orders = 0
        """Train orders so far."""
        self.multicasts = 0
        """Moments at which models were sent to clients in training."""
        self._last_broadcast = -1.0
        self._moment: Row | None = None

    def count_order(self, now: float, models: int) -> None:
        """A Train order was sent, with that many models in one download."""
        self.orders += 1
        self._count_download(now, models)

    def count_send(self, now: float, in_training: bool) -> None:
        """A model was sent, to a client in training or to one that is not."""
        self._count_download(now, 1)
        if in_training and now > self._last_broadcast:
            self.multicasts += 1
            self._last_broadcast = now

    def count_upload(self, now: float, nbytes: int) -> None:
        """An update has arrived."""
        if self.model_bytes:
            self.uploads += 1
            self.bytes_up += nbytes
            moment = self._at(now)
            moment["up"] += nbytes
            moment["uploads"] += 1

    def _count_download(self, now: float, models: int) -> None:
        if self.model_bytes:
            nbytes = models * self.model_bytes
            self.downloads += 1
            self.bytes_down += nbytes
            moment = self._at(now)
            moment["down"] += nbytes
            moment["downloads"] += 1

    def _at(self, now: float) -> Row:
        if self._moment is None or self._moment["time"] != now:
            self.close()
            self._moment = {"time": now, "up": 0, "down": 0, "uploads": 0, "downloads": 0}
        return self._moment

    def close(self) -> None:
        """The moment is over: it becomes a row."""
        if self._moment is not None:
            self.history.traffic.append(self._moment)
        self._moment = None

    def downloads_ratio(self) -> float | None:
        """Bytes downloaded, as a multiple of one model per order (what FedAsync needs); None where models do not travel
        or nobody had an order."""
        once = self.orders * self.model_bytes
        return self.bytes_down / once if once else None

    def figures(self, virtual_time: float) -> dict[str, Any]:
        """What the result of a run of this length says of its traffic, when its last moment is over."""
        minutes = virtual_time / MINUTE
        return {
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "uploads": self.uploads,
            "downloads": self.downloads,
            "uploads_per_minute": self.uploads / minutes if minutes else None,
            "downloads_per_minute": self.downloads / minutes if minutes else None,
            "peak_up": busiest_minute(self.history.traffic, "up"),
            "peak_down": busiest_minute(self.history.traffic, "down"),
            "downloads_ratio": self.downloads_ratio(),
            "bytes_per_exchange": self.bytes_down / self.orders if self.orders and self.model_bytes else None,
            "multicasts": self.multicasts,
        }

    _state = (
        *("bytes_up", "bytes_down", "uploads", "downloads", "orders"),
        *("multicasts", "_last_broadcast", "_moment"),
    )

    def save_state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._state}

    def load_state(self, saved: dict[str, Any]) -> None:
        for name in self._state:
            setattr(self, name, saved[name])


def busiest_minute(rows: Iterable[Row], direction: Literal["up", "down"]) -> int | None:
    """The most bytes in one whole minute of virtual time, from 60 k to before 60 (k + 1) seconds; None if nothing
    travelled in either direction."""
    minutes: Counter[int] = Counter()
    for row in rows:
        minutes[int(row["time"] // MINUTE)] += row[direction]
    return max(minutes.values(), default=None)
