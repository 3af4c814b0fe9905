"""Which settings a service goes on with: those of its journal. Defaults, such as the defences, are for new services."""

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from polytempo.core.errors import UserError
from polytempo.serve.journal.journal import Journal
from polytempo.serve.journal.opening import open_service
from polytempo.serve.journal.replay import replay
from polytempo.serve.journal.settings import make_settings
from polytempo.strategies.base.wrapper import Wrapper
from polytempo.strategies.parts.claims import CappedSamples
from polytempo.strategies.parts.robust import Robust
from support.serving import hosted, join_all, restarted, tiny_settings

pytestmark = pytest.mark.usefixtures("store")


def begun_bare(directory: Path) -> tuple[Path, dict[str, Any]]:
    """A service without defences that has had updates, and what is needed to start it again."""
    with hosted(directory) as served:
        join_all(served)
        served.push(0)
    given = served.settings.model_dump(include={"strategy", "init", "steps"})
    return served.directory, given


def test_defaults_are_for_new_services(tmp_path: Path) -> None:
    journal, given = begun_bare(tmp_path)
    opened = open_service(journal, make_settings(**given))
    opened.journal.close()
    assert not isinstance(opened.service.strategy, Wrapper)
    assert opened.service.digest() == restarted(tmp_path, tiny_settings(tmp_path))
    new = open_service(tmp_path / "new", make_settings(**given))
    new.journal.close()
    assert isinstance(new.service.strategy, CappedSamples)
    assert isinstance(new.service.strategy.inner, Robust)


def test_a_journal_from_before_there_was_a_cap_goes_on_without(tmp_path: Path) -> None:
    path, given = begun_bare(tmp_path)
    with closing(Journal(path)) as journal:
        journal.lock()
        settings = {name: value for name, value in journal.about["settings"].items() if name != "samples_cap"}
        journal.describe(journal.about | {"settings": settings})
    opened = open_service(path, make_settings(**given))
    opened.journal.close()
    assert not isinstance(opened.service.strategy, Wrapper)
    assert replay(path).service.digest() == opened.service.digest()


def test_a_defence_that_is_asked_for_where_the_service_was_begun_without_is_an_error(tmp_path: Path) -> None:
    journal, given = begun_bare(tmp_path)
    with pytest.raises(UserError, match=r"clip is None there, 3.0 here"):
        open_service(journal, make_settings(**given, clip=3))


def test_another_first_model_for_a_service_that_has_one_is_refused(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        served.hello(0)
    other = tmp_path / "other.safetensors"
    save_file({"weight": np.ones((2, 2), np.float32), "bias": np.zeros(2, np.float32)}, other)
    with pytest.raises(UserError, match=r"other\.safetensors is not the model that the service .* began with"):
        open_service(served.directory, tiny_settings(tmp_path, init=other))
    open_service(served.directory, tiny_settings(tmp_path)).journal.close()
