"""What the client costs a device: packages, size, time of the import, memory of a client that has its next task.

Beside it, in an environment of their own, the packages that it needs, with what every generated file imports of
protobuf. Times are medians of alternating repeats; those of the processor hardly
depend on what else the machine does.

    python benchmarks/client/footprint.py [--repeats 11]
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from environments import BASE, Environment, output_of, serving, wheel_of_client

GENERATED = "from google.protobuf import descriptor, descriptor_pool, symbol_database"
IMPORTS = {
    "base": f"import numpy, grpc; {GENERATED}; from google.protobuf.internal import builder",
    "client": "import polytempo_client",
}
CLOCKS = "(time.perf_counter(), time.process_time())"
TIMED = f"import time; began = {CLOCKS}; {{imports}}; now = {CLOCKS}; print(*(b - a for a, b in zip(began, now)))"
IDLE = """
import re, sys
from pathlib import Path
from polytempo_client import Client

address, directory = sys.argv[1:]
with Client(address, Path(directory, "client-0.token"), Path(directory, "ca.pem")) as client:
    task = client.task(60)
    client.push(task, task.tensors, samples=1, timeout=60)
    client.task(60)
    print(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text()).group(1))
"""
KINDS = ("by the clock", "of the processor")
PARAMETERS = 600_000


def import_times(environments: dict[str, Environment], repeats: int) -> dict[str, tuple[float, float]]:
    """Seconds by the clock and of the processor, in a process of its own each."""
    times: dict[str, list[list[float]]] = {name: [] for name in environments}
    for _ in range(repeats):
        for name, environment in environments.items():
            printed = output_of([environment.python, "-c", TIMED.format(imports=IMPORTS[name])])
            times[name].append([float(number) for number in printed.split()])
    return {name: tuple(map(statistics.median, zip(*found, strict=True))) for name, found in times.items()}


def idle_megabytes(environment: Environment, directory: Path) -> dict[int, float]:
    """Resident, of a client that has its next task in hand, by the number of parameters of its model."""
    found = {}
    for parameters in (1_000, PARAMETERS):
        service = directory / str(parameters)
        with serving(service, parameters) as address:
            command = [environment.python, "-c", IDLE, address, service]
            found[parameters] = int(output_of(command)) * 1024 / 1e6
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=11)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        wheel = wheel_of_client(directory)
        environments = {
            "base": Environment(directory / "base", BASE),
            "client": Environment(directory / "client", [wheel]),
        }
        sizes = {name: environment.megabytes() for name, environment in environments.items()}
        times = import_times(environments, given.repeats)
        print(f"Python {sys.version.split()[0]}, {given.repeats} repeats\n")
        print("| | numpy, grpcio, protobuf | with the client | bar |\n|---|---:|---:|---:|")
        added = environments["client"].installed() - environments["base"].installed()
        print(
            f"| packages | {', '.join(sorted(environments['base'].installed()))} | and {', '.join(added)} | no other |"
        )
        print(f"| size, MB | {sizes['base']:.1f} | {sizes['client']:.1f} | {sizes['base'] + 3:.1f} |")
        for kind, base, client in zip(
            ("by the clock", "of the processor"), times["base"], times["client"], strict=True
        ):
            print(f"| import, s {kind} | {base:.3f} | {client:.3f} | {1.2 * base:.3f} |")
        for parameters, megabytes in idle_megabytes(environments["client"], directory).items():
            print(f"| resident, {parameters:,} parameters, MB | | {megabytes:.1f} | 80 |")


if __name__ == "__main__":
    main()
