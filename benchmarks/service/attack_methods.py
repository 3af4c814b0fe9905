"""What is left of a service whose method fails: raises in a timer, hangs in an update, or ends the process.

    python benchmarks/service/attack_methods.py

A client hands in 40 updates, all of which are acknowledged, and then the harm happens. The server is stopped (SIGTERM,
and after 60 s SIGKILL), and started again: as it was, and then with the option that its message names. The table has
the acknowledged updates that are left. All on loopback; it takes about two minutes.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from polytempo import Client

UPDATES = 40
ADDRESS = "127.0.0.1:17741"
STARTING = 120.0
STOPPING = 60.0
SETTLING = 5.0
STARTS = 4
"""Of a server that ends again and again; the last is with --lose-tail, unless a message names something better."""
HARMS = ("timer", "hang", "exit")
METHOD = '''
import os
from polytempo.methods import SetTimer, Strategy

class Harmful(Strategy):
    """Mixes 40 updates; then it does harm."""

    def updated(self, update, now):
        self.model.mix(update.weights, 0.5)
        if self.model.version > {updates}:
            if {harm!r} == "hang":
                while True:
                    pass
            if {harm!r} == "exit":
                os._exit(9)
            return [SetTimer(now, "harm")]

    def fired(self, key, now):
        raise ZeroDivisionError(key)
'''


def main() -> None:
    print("| the method | the next starts | what let it go on | acknowledged updates left |")
    print("|---|---|---|---:|")
    for harm in HARMS:
        with tempfile.TemporaryDirectory() as directory:
            print("| " + " | ".join(tried(Path(directory), harm)) + " |", flush=True)


def tried(directory: Path, harm: str) -> tuple[str, str, str, str]:
    """One row of the table."""
    (directory / "harmful.py").write_text(METHOD.format(updates=UPDATES, harm=harm))
    (directory / "service.toml").write_text("[watchdog]\nevent_seconds = 5.0\n" if has_watchdog() else "")
    save_file({"weight": np.zeros((100, 10), np.float32)}, directory / "init.safetensors")
    polytempo(directory, "tokens", ".", "--clients", "1")
    server = serve(directory)
    with Client(ADDRESS, directory / "client-0.token", insecure=True) as client:
        for _ in range(UPDATES):
            push(client)
        with suppress(TimeoutError):
            push(client, timeout=5.0)
    stop(server)
    option, ends = "", []
    again = serve(directory)
    while again.poll() is not None and len(ends) < STARTS:
        ends.append(str(again.poll()))
        option = option_named_in((directory / "log").read_text()) or ("--lose-tail" if len(ends) == STARTS - 1 else "")
        again = serve(directory, *option.split())
    left = acknowledged(directory) if again.poll() is None else 0
    stop(again)
    how = f"end with {', '.join(ends)}" if ends else "go on"
    what = f"`{option}`" if option else "nothing needed" if left else "nothing did"
    return harm, how, what, f"{left} of {UPDATES}"


def push(client: Client, timeout: float = 60.0) -> None:
    task = client.task(timeout)
    client.push(task, {name: array + 0.01 for name, array in task.tensors.items()}, samples=10, timeout=timeout)


def option_named_in(log: str) -> str:
    found = re.findall(r"--leave-out \d+", log)
    return found[-1] if found else ""


def acknowledged(directory: Path) -> int:
    """Updates in the state of a running service, without those of the harm."""
    deadline = time.monotonic() + STARTING
    path = directory / "journal" / "status.json"
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    return min(int(json.loads(path.read_text())["updates"]), UPDATES)


def serve(directory: Path, *options: str) -> "subprocess.Popen[bytes]":
    """A server that listens, or has ended, or has had its time."""
    path = directory / "log"
    given = ("--dir", ".", "--insecure", "--listen", ADDRESS, "--init", "init.safetensors", "--steps", "1", *options)
    command = [sys.executable, "-m", "polytempo", "serve", "harmful.py:Harmful", *given]
    (directory / "journal" / "status.json").unlink(missing_ok=True)
    with path.open("wb") as log:
        server = subprocess.Popen(command, cwd=directory, stdout=log, stderr=log)
    deadline = time.monotonic() + STARTING
    while server.poll() is None and b"parameters" not in path.read_bytes():
        if time.monotonic() >= deadline:
            stop(server)
        time.sleep(0.1)
    with suppress(subprocess.TimeoutExpired):
        server.wait(SETTLING)  # it may end when it comes to the harm again
    return server


def stop(server: "subprocess.Popen[bytes]") -> None:
    server.terminate()
    try:
        server.wait(STOPPING)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def polytempo(directory: Path, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "polytempo", *arguments], cwd=directory, check=True, capture_output=True)


def has_watchdog() -> bool:
    """The same script measures versions that have none."""
    from polytempo.serve.server.operations import Operations

    return "watchdog" in Operations.model_fields


if __name__ == "__main__":
    main()
