"""An exchange of 600,000 parameters (an update in, the next task out), with this client and with the one of an earlier
commit, against one server over TLS. Both clients run in environments with numpy, grpcio and protobuf only. They take
turns; times are medians over all exchanges, processor times of the client's process medians over its turns.

    python benchmarks/client/exchange.py [--before COMMIT] [--turns 9] [--exchanges 40]
"""

import argparse
import statistics
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path
from subprocess import check_output

from environments import BASE, ROOT, Environment, output_of, serving, wheel_of_client

BEFORE = "d8b8f53"
"""The last commit in which the client was part of Polytempo."""
PARAMETERS = 600_000
SCRIPT = """
import sys, time
from pathlib import Path
from {package} import Client

address, directory, number, exchanges = sys.argv[1:]
with Client(address, Path(directory, f"client-{{number}}.token"), Path(directory, "ca.pem")) as client:
    task = client.task(60)
    used = time.process_time()
    for _ in range(int(exchanges)):
        trained = {{name: array + 1e-6 for name, array in task.tensors.items()}}
        began = time.perf_counter()
        client.push(task, trained, samples=1, timeout=60)
        task = client.task(60)
        print(time.perf_counter() - began)
    print((time.process_time() - used) / int(exchanges))
"""


def source_at(commit: str, directory: Path) -> Path:
    """The package as it was."""
    with tarfile.open(fileobj=BytesIO(check_output(["git", "-C", ROOT, "archive", commit, "src"]))) as archive:
        archive.extractall(directory, filter="data")
    return directory / "src"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--before", default=BEFORE)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--exchanges", type=int, default=40)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        old = Environment(directory / "old", BASE)
        new = Environment(directory / "new", [wheel_of_client(directory)])
        before = {"PYTHONPATH": str(source_at(given.before, directory / "source"))}
        clients = {
            "before": (old, SCRIPT.format(package="polytempo"), before),
            "now": (new, SCRIPT.format(package="polytempo_client"), {}),
        }
        times: dict[str, list[float]] = {name: [] for name in clients}
        used: dict[str, list[float]] = {name: [] for name in clients}
        with serving(directory / "service", PARAMETERS) as address:
            for _ in range(given.turns):
                for number, (name, (environment, script, variables)) in enumerate(clients.items()):
                    words = [address, directory / "service", str(number), str(given.exchanges)]
                    lines = output_of([environment.python, "-c", script, *words], env=variables).split()
                    *exchanges, processor = map(float, lines)
                    times[name] += exchanges[2:]  # the first ones come with the connection
                    used[name].append(processor)
        medians = {name: statistics.median(found) for name, found in times.items()}
        print(f"Python {sys.version.split()[0]}, {given.turns} turns of {given.exchanges} exchanges each\n")
        print("| client | median, ms | slowest tenth from, ms | processor, ms |\n|---|---:|---:|---:|")
        for name, found in times.items():
            tenth, processor = statistics.quantiles(found, n=10)[-1], statistics.median(used[name])
            print(f"| {name} | {1e3 * medians[name]:.1f} | {1e3 * tenth:.1f} | {1e3 * processor:.2f} |")
        print(f"\nnow / before: {medians['now'] / medians['before']:.3f}; bar 1.2")


if __name__ == "__main__":
    main()
