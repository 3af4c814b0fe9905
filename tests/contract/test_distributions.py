"""The two distributions of the repository belong together."""

import re
import tomllib

from support import ROOT

WHOLE, CLIENT = (
    tomllib.loads((ROOT / directory / "pyproject.toml").read_text())["project"] for directory in (".", "client")
)


def needed(project):
    return {re.match(r"[\w-]+", line)[0] for line in project["dependencies"]}


def test_the_client_needs_numpy_grpcio_and_protobuf_and_nothing_else():
    assert needed(CLIENT) == {"numpy", "grpcio", "protobuf"}
    assert "optional-dependencies" not in CLIENT


def test_polytempo_needs_the_client_of_its_own_version():
    assert f"polytempo-client=={WHOLE['version']}" in WHOLE["dependencies"]
    assert CLIENT["version"] == WHOLE["version"]


def test_what_both_need_is_needed_in_one_version():
    shared = needed(CLIENT) & needed(WHOLE)
    assert len(shared) == 3
    assert set(CLIENT["dependencies"]) <= set(WHOLE["dependencies"])
