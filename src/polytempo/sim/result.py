"""The figures of a run. Each is declared once, with its meaning and its unit. result.json, the attributes of ``Run``,
the tables of terminal and report, and the reference page are made from this list."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, Literal, NoReturn, TypeVar, overload

T = TypeVar("T")
Unit = Literal["", "score", "share", "s", "bytes", "count", "per minute", "versions", "nats"]


class Figure(Generic[T]):
    """One figure. Read on the class it is this description, read on an object it is the object's value."""

    name: str

    def __init__(
        self, meaning: str, unit: Unit = "", title: str = "", best: Literal["highest", "lowest", None] = None
    ) -> None:
        self.meaning = meaning
        self.unit: Unit = unit
        """``share`` is from 0 to 1; tables show it in percent. ``score`` is what the metric gives, usually accuracy."""
        self.title = title
        """The heading of its column; empty for a figure that no table shows by itself."""
        self.best: Literal["highest", "lowest", None] = best
        """Which value of a column stands out."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, holder: None, owner: type) -> "Figure[T]": ...
    @overload
    def __get__(self, holder: "HasFigures", owner: type) -> T: ...
    def __get__(self, holder: "HasFigures | None", owner: type) -> "Figure[T] | T":
        if holder is None:
            return self
        value: T = holder.value_of(self.name)
        return value

    def __set__(self, holder: "HasFigures", value: T) -> NoReturn:
        raise AttributeError(f"{self.name} is a figure of a finished run and does not change")


class HasFigures:
    """Every figure of a run as a typed attribute. None stands for a figure that the run does not have."""

    def value_of(self, name: str) -> Any:
        """The value of a figure by name."""
        raise NotImplementedError

    strategy = Figure[str]("Strategy that was run.")
    seed = Figure[int]("Random seed.")
    accuracy = Figure[float](
        "Mean over clients of the accuracy (or the metric) on their own test data of the model each would be served "
        "now.",
        "score",
        title="served %",
        best="highest",
    )
    accuracy_trained = Figure[float | None](
        "The same for each client's own model right after its last local training.",
        "score",
        title="own model %",
        best="highest",
    )
    accuracy_used = Figure[float](
        "The same for the model that each client works with: what its rule makes of its own and the served one; "
        "without a rule the served one.",
        "score",
        title="used %",
        best="highest",
    )
    accuracy_validation = Figure[float | None](
        "The same on the clients' validation rows, by which settings are chosen; null without `validation_share`.",
        "score",
    )
    accuracy_std = Figure[float]("Standard deviation of the used accuracy over clients.", "score")
    accuracy_slowest_fifth = Figure[float](
        "Mean used accuracy of the fifth of the clients with the slowest devices.",
        "score",
        title="slowest fifth %",
        best="highest",
    )
    accuracy_fastest_fifth = Figure[float](
        "Mean used accuracy of the fifth of the clients with the fastest devices.",
        "score",
        title="fastest fifth %",
        best="highest",
    )
    accuracy_slowest_device = Figure[float](
        "Mean used accuracy of the clients with the slowest device type present; without types, of the slowest client.",
        "score",
        title="slowest device %",
        best="highest",
    )
    accuracy_fastest_device = Figure[float](
        "Mean used accuracy of the clients with the fastest device type present; without types, of the fastest client.",
        "score",
        title="fastest device %",
        best="highest",
    )
    accuracy_per_device = Figure[Mapping[str, float] | None](
        "Mean used accuracy of the clients of each device type; null without types.", "score"
    )
    virtual_time = Figure[float]("Simulated time.", "s", title="virtual time s")
    time_to_target = Figure[float | None](
        "Virtual time of the first evaluation whose used accuracy is at or above the target (at or below it where "
        "lower is better); null if there was none.",
        "s",
        title="time to target s",
        best="lowest",
    )
    updates = Figure[int]("Updates received.", "count", title="updates")
    refused = Figure[int](
        "Updates refused because they held NaN or Inf. They are not among the updates received.",
        "count",
        title="refused (NaN, Inf)",
    )
    client_steps = Figure[int]("Local steps done for the updates received.", "count", title="client steps")
    wall_seconds = Figure[float](
        "Real time of the simulation, without loading data and compiling; of a continued run, all its parts together.",
        "s",
        title="wall s",
    )
    train_seconds = Figure[float]("CPU time of all threads in local training.", "s", title="train s")
    overhead_seconds = Figure[float]("Wall time in which nothing was trained or evaluated.", "s", title="overhead s")
    bytes_up = Figure[int]("Bytes uploaded, 4 per number unless they are compressed.", "bytes", title="MB up")
    bytes_down = Figure[int]("Bytes downloaded, 4 per number unless they are compressed.", "bytes", title="MB down")
    uploads = Figure[int]("Updates that arrived, where models travel.", "count")
    downloads = Figure[int](
        "Orders to train and models sent, where models travel. An order with several models is one download.", "count"
    )
    uploads_per_minute = Figure[float | None](
        "Uploads per minute of virtual time; null where none has passed.", "per minute"
    )
    downloads_per_minute = Figure[float | None](
        "Downloads per minute of virtual time; null where none has passed.", "per minute"
    )
    peak_up = Figure[int | None](
        "Most bytes uploaded in one whole minute of virtual time (0 to 60 s, 60 to 120 s, ...); null where models do "
        "not travel.",
        "bytes",
        title="peak MB/min up",
    )
    peak_down = Figure[int | None]("The same for bytes downloaded.", "bytes", title="peak MB/min down")
    downloads_ratio = Figure[float | None](
        "bytes_down over what one model per order would have been, open tasks at the end included: exactly 1 for "
        "FedAsync; null where models do not travel. More than 1 where orders carry several models, where clients in "
        "training are refreshed, or where pulls are answered.",
        "",
        title="downloads vs FedAsync",
    )
    bytes_per_exchange = Figure[float | None](
        "Bytes that a client downloads per order; null where models do not travel.", "bytes"
    )
    multicasts = Figure[int]("Moments at which models were sent to clients in training.", "count")
    exchanges = Figure[int](
        "Updates answered with a model, where clients ask when they want to or hold mixtures of clusters.", "count"
    )
    accuracy_before = Figure[float | None](
        "Mean over the last quarter of the exchanges of the accuracy of the model that the client had just trained, on "
        "its test data of that moment; null without exchanges.",
        "score",
    )
    accuracy_after = Figure[float | None](
        "The same for the model that the client was answered with.", "score", title="after exchange %", best="highest"
    )
    mixture_kl = Figure[float | None](
        "Mean over the last quarter of the exchanges of KL(true, estimated mixture of clusters in the client's data), "
        "shares below 1e-9 counting as that; null for methods that do not estimate it.",
        "nats",
        title="mixture KL",
        best="lowest",
    )
    mixture_kl_uniform = Figure[float | None](
        "What the uniform mixture would have had over the same exchanges.", "nats", title="uniform KL"
    )
    cluster_accuracy = Figure[float | None](
        "Mean over clusters of the accuracy of each cluster's model on test samples of that cluster at the end; null "
        "for methods without such models.",
        "score",
        title="cluster %",
        best="highest",
    )
    cluster_accuracies = Figure[Sequence[float] | None]("The same, one number per cluster.", "score")
    refreshes = Figure[int]("Clients in training that a model reached before their last step.", "count")
    mean_staleness = Figure[float](
        "Mean over updates of the versions between an update's start and its arrival.", "versions", title="staleness"
    )
    idle_share = Figure[float](
        "Mean over clients of the share of their time in which they were ready and had nothing to do.",
        "share",
        title="idle %",
    )
    clusters = Figure[int]("Distinct clusters at the end.", "count", title="clusters")
    expansions = Figure[int]("How often clients of a cluster began a new one.", "count")
    merges = Figure[int]("How often a cluster went over to another.", "count")
    purity = Figure[float | None](
        "Share of clients in the largest true group of their cluster; null where there are no groups.",
        "share",
        title="purity",
        best="highest",
    )
    ari = Figure[float | None](
        "Adjusted Rand index of the clusters against the true groups; null where there are none.",
        "",
        title="ARI",
        best="highest",
    )
    epsilon = Figure[float | None](
        "Largest privacy loss of a client at delta 1e-5; null where updates are not blurred."
    )
    held_back = Figure[int | None](
        "Updates that robust mixing held back: they moved no model; null without robust mixing or clipping.", "count"
    )
    tryout_winner = Figure[str | None](
        "The side that won the personal rule's tryout, solo or mixing; null while it is open, and without the rule."
    )
    digest = Figure[str](
        "SHA-256 over the final state of the server and the history of the run: equal digests, equal runs."
    )


FIGURES: Mapping[str, Figure[Any]] = {
    name: figure for name, figure in vars(HasFigures).items() if isinstance(figure, Figure)
}


class Result(HasFigures, Mapping[str, Any]):
    """The figures of one run, as attributes and as the mapping that result.json holds."""

    def __init__(self, **figures: Any) -> None:
        different = figures.keys() ^ FIGURES.keys()
        if different:
            raise TypeError(f"a result has all figures and no others, but for: {', '.join(sorted(different))}")
        self._figures = {name: figures[name] for name in FIGURES}

    def value_of(self, name: str) -> Any:
        return self._figures[name]

    def __getitem__(self, name: str) -> Any:
        return self._figures[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._figures)

    def __len__(self) -> int:
        return len(self._figures)

    def __repr__(self) -> str:
        known = ", ".join(f"{name}={value!r}" for name, value in self.items() if value is not None)
        return f"Result({known})"


def figures_table() -> str:
    """The table of figures in the reference page, as Markdown."""
    units = {"share": "0 to 1", "score": "the metric’s", "count": ""}
    rows = (f"| {f.name} | {f.meaning} | {units.get(f.unit, f.unit)} |\n" for f in FIGURES.values())
    return "| key | meaning | unit |\n|---|---|---|\n" + "".join(rows)
