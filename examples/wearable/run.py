"""A service and its wearers, as processes on this machine, for one short day. Half of the wearers lie on a charger and
ask on a schedule; the other half are on battery and ask when their data shift. Operators look on.

python run.py --wearers 30 --day 120 --data uci-har-inertial.npz
"""

import argparse
import json
import re
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from sklearn.datasets import load_digits

HERE = Path(__file__).parent
LOOKS = 5.0
"""Seconds between two lines about the service."""


def recordings(data: Path | None, wearers: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Of each wearer: features and activities in the order of the day. In the morning they sit, in the afternoon they
    move: half of the classes come later."""
    if data is None:
        x, y = load_digits(return_X_y=True)
        x, users = x / 16, np.random.default_rng(0).integers(wearers, size=len(y))
    else:
        with np.load(data) as file:
            x, y, users = features(file["x"]), file["y"], file["users"]
    noon = np.sort(np.unique(y))[len(np.unique(y)) // 2]
    rng = np.random.default_rng(1)
    days = []
    for wearer in range(wearers):
        rows = rng.permutation(np.flatnonzero(users == wearer))
        if not len(rows):
            sys.exit(f"The data have no wearer {wearer}: give --wearers up to {len(np.unique(users))}.")
        rows = rows[np.argsort(y[rows] < noon, kind="stable")]
        days.append((x[rows].astype(np.float32), y[rows]))
    return days


def features(windows: np.ndarray) -> np.ndarray:
    """Of each sensor: mean, deviation, range, and mean change from one moment to the next. They are scaled over all
    wearers; a device has constants in their place, from recordings of the past."""
    changes = np.abs(np.diff(windows, axis=2)).mean(2)
    found = np.concatenate([windows.mean(2), windows.std(2), np.ptp(windows, axis=2), changes], axis=1)
    return (found - found.mean(0)) / (found.std(0) + 1e-6)


def begin(directory: Path, days: list[tuple[np.ndarray, np.ndarray]]) -> None:
    """Recordings, the first model, certificates and tokens."""
    classes = 1 + max(int(y.max()) for _, y in days)
    for wearer, (x, y) in enumerate(days):
        np.savez(directory / f"wearer-{wearer}.npz", x=x, y=y, classes=classes)
    weight = np.zeros((classes, days[0][0].shape[1]), np.float32)
    save_file({"weight": weight, "bias": np.zeros(classes, np.float32)}, directory / "model.safetensors")
    polytempo("certs", directory)
    polytempo("tokens", directory, "--clients", len(days))
    polytempo("tokens", directory, "--operator", "anna", "--role", "admin")


def polytempo(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "polytempo", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def serve(directory: Path, log: Path) -> "subprocess.Popen[bytes]":
    listen = "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"
    training = "--init", directory / "model.safetensors", "--epochs", 2, "--batch-size", 10, "--lr", 0.1
    command = [sys.executable, "-m", "polytempo", "serve", "fedasync", "--dir", directory, *listen, *training]
    with log.open("wb") as file:
        return subprocess.Popen(list(map(str, command)), stderr=file, stdout=file)


def listening(server: "subprocess.Popen[bytes]", log: Path) -> tuple[str, str]:
    """Where clients and operators find the service, as soon as it says so."""
    while server.poll() is None:
        found = re.search(r" on (\S+) \(TLS\).*?operators: (\S+)", log.read_text(), re.DOTALL)
        if found:
            return found[1], found[2]
        time.sleep(0.1)
    sys.exit(f"The service has not begun:\n{log.read_text()}")


class Operator:
    """What the operators' page shows, as JSON."""

    def __init__(self, directory: Path, page: str) -> None:
        token = (directory / "operator-anna.token").read_text().strip()
        self._asked = urllib.request.Request(f"{page}api/status", headers={"Authorization": f"Bearer {token}"})
        self._last: list[dict] = []
        self._tls = ssl.create_default_context(cafile=str(directory / "ca.pem"))

    def clients(self) -> list[dict]:
        """As of now; where a machine with too much to do gives no answer, as of the last one."""
        try:
            with urllib.request.urlopen(self._asked, context=self._tls) as answer:
                self._last = json.load(answer)["status"].get("clients", [])  # none in its first moments
        except OSError as error:
            print(f"the operators' page gave no answer: {error}", flush=True)
        return self._last


def policy(wearer: int, day: float) -> str:
    return f"every:{day / 10:g}" if wearer % 2 == 0 else f"loss:{day / 40:g}"


def summary(clients: list[dict]) -> str:
    """How often each half has asked, and how good the models were that they worked with at last."""
    lines = []
    for name, half in (("on a schedule", clients[::2]), ("on battery", clients[1::2])):
        updates = [client["updates"] for client in half]
        accuracies = [client["accuracy"] for client in half if client["accuracy"] is not None]
        if half:
            accuracy = f"{100 * np.mean(accuracies):.1f} %" if accuracies else "unknown"
            lines.append(f"{len(half):3} {name:13}  updates {np.mean(updates):5.1f} each  accuracy at last {accuracy}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wearers", type=int, default=30)
    parser.add_argument("--day", type=float, default=120.0, help="seconds that a day lasts")
    parser.add_argument("--data", type=Path, help="UCI-HAR windows, an .npz with x, y, users (default: digits)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="wearable-") as name:
        directory = Path(name)
        begin(directory, recordings(given.data, given.wearers))
        server = serve(directory, directory / "server.log")
        wearers = []
        try:
            address, page = listening(server, directory / "server.log")
            print(
                f"operators: {page} with the token {(directory / 'operator-anna.token').read_text().strip()}",
                flush=True,
            )
            operator = Operator(directory, page)
            for wearer in range(given.wearers):
                files = [directory / file for file in (f"wearer-{wearer}.npz", f"client-{wearer}.token", "ca.pem")]
                how = "--day", given.day, "--ask", policy(wearer, given.day)
                command = [sys.executable, HERE / "wearer.py", address, *files, *how]
                wearers.append(subprocess.Popen(list(map(str, command)), stderr=subprocess.DEVNULL))
            looked = 0.0
            while any(wearer.poll() is None for wearer in wearers):
                time.sleep(0.2)
                if time.monotonic() - looked > LOOKS:
                    looked, clients = time.monotonic(), operator.clients()
                    there = sum(client["connected"] for client in clients)
                    print(f"{there} connected, {sum(client['updates'] for client in clients)} updates", flush=True)
            print(summary(operator.clients()))
            failed = [wearer for wearer, process in enumerate(wearers) if process.returncode]
            if failed:
                sys.exit(f"These wearers ended with an error: {failed}")
        finally:
            for process in [*wearers, server]:
                process.terminate()
            for process in [*wearers, server]:
                process.wait()


if __name__ == "__main__":
    main()
