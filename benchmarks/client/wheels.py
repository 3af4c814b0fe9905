"""For which platforms and versions of Python the packages that the client needs have wheels, as pip's ``--platform``
finds them.

    python benchmarks/client/wheels.py
"""

import subprocess
import sys
import tempfile
from datetime import UTC, datetime

PACKAGES = ("numpy", "grpcio", "protobuf")
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
GLIBC = tuple(range(40, 16, -1))


def manylinux(machine: str) -> list[str]:
    return [*(f"manylinux_2_{minor}_{machine}" for minor in GLIBC), f"manylinux2014_{machine}", f"linux_{machine}"]


def macos(machine: str, oldest: int) -> list[str]:
    return [
        f"macosx_{major}_{minor}_{kind}"
        for major in range(15, oldest - 1, -1)
        for minor in (0, 9, 13)
        for kind in (machine, "universal2")
    ]


PLATFORMS = {
    "Linux x86_64": manylinux("x86_64"),
    "Linux aarch64": manylinux("aarch64"),
    "Linux armv7 (32 bit)": manylinux("armv7l"),
    "Alpine x86_64": ["musllinux_1_2_x86_64", "musllinux_1_1_x86_64"],
    "Alpine aarch64": ["musllinux_1_2_aarch64", "musllinux_1_1_aarch64"],
    "macOS arm64": macos("arm64", 11),
    "macOS x86_64": macos("x86_64", 10),
    "Windows x86_64": ["win_amd64"],
    "Windows 32 bit": ["win32"],
    "Windows arm64": ["win_arm64"],
}


def has_wheel(package: str, platforms: list[str], version: str) -> bool:
    """Has a release of a package that this Python takes a wheel for one of these platforms?"""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed", "--no-deps"]
        command += ["--only-binary=:all:", "--python-version", version, "--target", directory]
        for platform in platforms:
            command += ["--platform", platform]
        done = subprocess.run([*command, package], capture_output=True, text=True, check=False)
        return done.returncode == 0


def main() -> None:
    print(f"{datetime.now(UTC):%Y-%m-%d}\n\n| | {' | '.join(VERSIONS)} |\n|---|{'---|' * len(VERSIONS)}")
    for name, platforms in PLATFORMS.items():
        cells = []
        for version in VERSIONS:
            missing = [package for package in PACKAGES if not has_wheel(package, platforms, version)]
            cells.append(f"no {', '.join(missing)}" if missing else "yes")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
