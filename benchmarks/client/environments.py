"""Fresh virtual environments for the benchmarks of the client, and a service on loopback for them to talk to."""

import os
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from polytempo.serve.access.certs import make_certs
from polytempo.serve.access.tokens import make_tokens

ROOT = Path(__file__).parent.parent.parent
BASE = ("numpy", "grpcio", "protobuf")
"""What the client is allowed to need."""


def output_of(command: Sequence[str | Path], **given: object) -> str:
    """What a command prints. If it fails, that is shown."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **given)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}")
    return str(done.stdout)


class Environment:
    """A virtual environment with these packages."""

    def __init__(self, directory: Path, packages: Sequence[str | Path]) -> None:
        venv.create(directory, with_pip=True)
        bin_ = "Scripts" if os.name == "nt" else "bin"
        self.python = directory / bin_ / "python"
        # As compiled as after the first start, which is not what is measured.
        pip = [self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--compile"]
        output_of([*pip, "--constraint", ROOT / "constraints.txt", *packages])
        code = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
        self.packages = Path(output_of([self.python, "-c", code]).strip())

    def installed(self) -> set[str]:
        lines = output_of([self.python, "-m", "pip", "list", "--format", "freeze", "--disable-pip-version-check"])
        return {line.partition("==")[0] for line in lines.splitlines()} - {"pip", "setuptools"}

    def megabytes(self) -> float:
        """Of its packages, without the tools that install them."""
        tools = ("pip", "setuptools", "pkg_resources", "_distutils_hack", "distutils-precedence")
        files = (
            path
            for path in self.packages.rglob("*")
            if path.is_file() and not path.relative_to(self.packages).parts[0].startswith(tools)
        )
        return sum(file.stat().st_size for file in files) / 1e6


def wheel_of_client(directory: Path) -> Path:
    """The client's wheel, built from this repository."""
    output_of([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", directory, ROOT / "client"])
    return next(directory.glob("polytempo_client-*.whl"))


@contextmanager
def serving(directory: Path, parameters: int, clients: int = 2) -> Iterator[str]:
    """A service with a model of so many parameters. Yields its address."""
    directory.mkdir()
    make_certs(directory, [])
    make_tokens(directory, clients)
    weights = np.random.default_rng(0).normal(size=parameters).astype(np.float32)
    save_file({"weight": weights[:-10].reshape(-1, 10), "bias": weights[-10:]}, directory / "init.safetensors")
    command = [sys.executable, "-m", "polytempo", "serve", "fedasync", "--dir", directory, "--steps", "1"]
    command += ["--init", directory / "init.safetensors", "--listen", "127.0.0.1:0", "--log-level", "error"]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        line = service.stdout.readline()
        try:
            yield line.split(" on ")[1].split(" ")[0]
        finally:
            service.send_signal(signal.SIGTERM)
            service.wait(60)
