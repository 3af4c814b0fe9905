"""Exchanges per second of a server (an update in, journalled and synced, the next task out) with its journal in files
and in PostgreSQL, beside a bare grpc.aio echo of the same bytes over one open stream per client, in turns.

    python benchmarks/service/store_load.py [--seconds 5] [--repeats 3] [--clients 8] [--parameters 1000 600000]

Everything is on loopback, in plaintext, and on the same disk; PostgreSQL is this machine's too, with its defaults, and
no standby reads along. Each figure is the median of the repetitions; the shares are medians of the repetitions' own.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from serving_load import Measured, measure_echoes, measure_polytempo

from polytempo.serve.storage.address import note_database

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from support.postgres import NUMBERS, Server

STORES = ("files", "PostgreSQL")


def measure(store: str, database: Server, parameters: int, clients: int, seconds: float) -> Measured:
    with tempfile.TemporaryDirectory() as name:
        if store == "PostgreSQL":
            note_database(Path(name), database.url(f"load_{next(NUMBERS)}"))
        return measure_polytempo(parameters, clients, seconds, Path(name))


def row(store: str, parameters: int, clients: int, found: list[tuple[Measured, Measured]]) -> str:
    """The figures of one store: pairs of an echo and ours."""
    rate, p50, p99 = (
        statistics.median(figure(ours) for _, ours in found)
        for figure in (lambda one: one.rate, lambda one: one.milliseconds(0.5), lambda one: one.milliseconds(0.99))
    )
    echo = statistics.median(streamed.rate for streamed, _ in found)
    shares = sorted(100 * ours.rate / streamed.rate for streamed, ours in found)
    share = f"{statistics.median(shares):.0f} % ({shares[0]:.0f} to {shares[-1]:.0f})"
    return f"| {parameters:,} | {clients} | {store} | {rate:,.0f} | {p50:.1f} | {p99:.1f} | {echo:,.0f} | {share} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--parameters", type=int, nargs="+", default=[1_000, 600_000])
    chosen = parser.parse_args()
    print("| parameters | clients | store | exchanges/s | p50 ms | p99 ms | echo, stream/s | of the echo |")
    print("|---:|---:|---|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory(prefix="polytempo-load-") as folder:
        database = Server(Path(folder))
        try:
            for parameters in chosen.parameters:
                found: dict[str, list[tuple[Measured, Measured]]] = {store: [] for store in STORES}
                for _ in range(chosen.repeats):
                    for store in STORES:
                        _, streamed = measure_echoes(parameters, chosen.clients, chosen.seconds)
                        ours = measure(store, database, parameters, chosen.clients, chosen.seconds)
                        found[store].append((streamed, ours))
                for store in STORES:
                    print(row(store, parameters, chosen.clients, found[store]), flush=True)
        finally:
            database.stop()


if __name__ == "__main__":
    main()
