"""What the client costs a device: packages, size, time of the import, memory of a client that has its next task.

Beside it, in an environment of their own, the packages that it needs, with what every generated file imports of
protobuf. Times are medians of alternating repeats.

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
TIMED = "import time; began = time.perf_counter(); {imports}; print(time.perf_counter() - began)"
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
PARAMETERS = 600_000


def import_times(environments: dict[str, Environment], repeats: int) -> dict[str, float]:
    """Seconds, in a process of its own each."""
    times: dict[str, list[float]] = {name: [] for name in environments}
    for _ in range(repeats):
        for name, environment in environments.items():
            times[name].append(float(output_of([environment.python, "-c", TIMED.format(imports=IMPORTS[name])])))
    return {name: statistics.median(found) for name, found in times.items()}


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
        print(f"| import, s | {times['base']:.3f} | {times['client']:.3f} | {1.2 * times['base']:.3f} |")
        for parameters, megabytes in idle_megabytes(environments["client"], directory).items():
            print(f"| resident, {parameters:,} parameters, MB | | {megabytes:.1f} | 80 |")


if __name__ == "__main__":
    main()
