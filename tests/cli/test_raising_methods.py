"""A method that raises is one message for its author: the event, the method, and the end of its own stack."""

from pathlib import Path

import pytest

from support import Call
from support.serving import hosted, some_events

RAISER = """
from polytempo.methods import Strategy

class Raiser(Strategy):
    def updated(self, update, now):
        helped()

class Unready(Strategy):
    def setup(self):
        helped()

class Modelless(Strategy):
    def model_for(self, client):
        helped()

def helped():
    raise ValueError("no such luck")
"""


@pytest.fixture
def raiser(tmp_path: Path) -> Path:
    (tmp_path / "raiser.py").write_text(RAISER)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "at"),
    [("Raiser", "updated (client "), ("Unready", "begin:"), ("Modelless", "model_for (client 0)")],
)
def test_a_run_of_a_method_that_raises_says_where(polytempo: Call, raiser: Path, name: str, at: str) -> None:
    code, _, err = polytempo("run", f"raiser.py:{name}", "--clients", 4, "--workers", 1, "--quiet", "--out", "out")
    assert code == 2
    assert err.startswith(f"polytempo: {name} fails at {at}")
    assert "ValueError: no such luck\n" in err
    assert 'raiser.py", line' in err
    assert err.endswith('raise ValueError("no such luck")\n')
    assert "Traceback" not in err


def test_a_replay_with_a_method_that_raises_names_the_event(polytempo: Call, raiser: Path) -> None:
    with hosted(raiser) as service:
        some_events(service)
    code, _, err = polytempo("replay", service.directory, "--strategy", "raiser.py:Raiser")
    assert code == 2
    assert "polytempo: Raiser fails at event " in err
    assert "(update of client 0): ValueError: no such luck\n" in err
    assert err.endswith('raise ValueError("no such luck")\n')
    assert "Traceback" not in err
