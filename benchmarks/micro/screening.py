"""How long an update takes to be clipped, and to be mixed with those of others.

python benchmarks/micro/screening.py [PARAMETERS]
"""

import sys

import torch
from encoding import milliseconds

from polytempo.core.events import Update
from polytempo.core.orders import Work
from polytempo.strategies import Setting
from polytempo.strategies.parts.asynchronous import Asynchronous
from polytempo.strategies.parts.robust import Mix, Robust
from polytempo_client.model.schema import Schema
from polytempo_client.streams import stream

CLIENTS = 40


class Unmoved(Asynchronous):
    """Does nothing with an update, so that only what is around it is measured."""


def main() -> None:
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 600_000
    torch.set_num_threads(1)
    rng = stream(0, "updates")
    deltas = [torch.from_numpy(rng.normal(0, 1e-3, size).astype("float32")) for _ in range(CLIENTS)]
    start = torch.zeros(size)
    print(f"{size:,} parameters, {CLIENTS} clients, one thread")
    for name, mix in (
        ("clip", None),
        *((f"clip and median:{k}", Mix(k, 0.5)) for k in (10, 20, 30)),
    ):
        server = Robust(Unmoved(), 2.0, mix)
        server.begin(Setting(start, Schema(("weight",), ((size,),), size), Work(steps=1, epochs=None)))
        for client in range(CLIENTS):
            server.joined(client, 0.0)
            server.updated(Update(client, 0, start, deltas[client], 1, 1), 0.0)
        turn = iter(range(10**9))

        def screened() -> None:
            client = next(turn) % CLIENTS  # noqa: B023
            server.updated(Update(client, 0, start, deltas[client], 1, 1), 0.0)  # noqa: B023

        print(f"{name:18} {milliseconds(screened):6.1f} ms")


if __name__ == "__main__":
    main()
