"""Settings of a strategy: words are parsed when they are given."""

import pytest

from polytempo.core.errors import UserError
from polytempo.sim.experiment import make_experiment
from polytempo.strategies.parts.robust import Mix
from polytempo.strategies.settings import StrategySettings
from polytempo.testing import vector
from polytempo_client.model.schema import Schema


def begun(settings):
    return settings.begin(settings.make(), vector(0.0), Schema(("w",), ((1,),), 1))


@pytest.mark.parametrize("make", [StrategySettings, make_experiment])
def test_a_copy_means_what_its_own_words_say(make):
    settings = make(strategy="fedasync", robust="median:5", participation="k:2", lr=0.1)
    copy = begun(settings.model_copy(update={"robust": "median:7", "participation": "k:3", "lr": 0.2}))
    assert (copy.mix, copy.setting.participation.count, copy.setting.work.lr) == (Mix(7, 0.5), 3, 0.2)
    made = begun(settings)
    assert (made.mix, made.setting.participation.count, made.setting.work.lr) == (Mix(5, 0.5), 2, 0.1)


@pytest.mark.parametrize("bad", [{"lr": "fast"}, {"participation": "some"}, {"robust": "mean"}])
def test_words_that_are_not_understood_are_refused_at_once(bad):
    with pytest.raises(UserError, match=r"not understood|neither a number nor a schedule"):
        StrategySettings(strategy="fedasync", **bad)
