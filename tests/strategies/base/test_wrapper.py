"""Wrappers: a driver that holds one sees the strategy inside."""

import pytest

from polytempo.core.branch import branches
from polytempo.core.errors import StrategyError
from polytempo.core.state import digest, pack, unpack
from polytempo.sim.records.evaluation import Stop
from polytempo.strategies import Setting, Strategy, make_strategy
from polytempo.strategies.base.contract import check_packable
from polytempo.strategies.base.wrapper import Wrapper
from polytempo.strategies.parts.robust import Mix, Robust
from polytempo.testing import begun, simulator, vector

FOR_METHODS = {"setup", "order_for", "train"}
"""What only a method itself calls or overrides."""


class Counting(Wrapper):
    """Counts the updates that come by."""

    remembered = ("count",)

    def setup(self):
        self.count = 0

    def updated(self, update, now):
        self.count += 1
        return super().updated(update, now)


def test_a_wrapper_hands_on_whatever_a_driver_calls():
    public = {name for name, value in vars(Strategy).items() if callable(value) or isinstance(value, property)}
    assert {name for name in public if not name.startswith("_")} - FOR_METHODS <= set(vars(Wrapper))


@pytest.mark.parametrize("name", ["cdfl", "icfl", "standalone"])
def test_a_wrapper_says_what_the_class_inside_says(name):
    inner = make_strategy(name, {})
    declared = [name for name, kind in Strategy.__annotations__.items() if "ClassVar" in str(kind)]
    declared.remove("revision")  # a wrapper has one of its own
    declared.remove("presets")  # what is inside has been made already
    assert len(declared) == 6
    assert [getattr(Wrapper(inner), name) for name in declared] == [getattr(inner, name) for name in declared]


@pytest.mark.parametrize("name", ["fedavg", "casa", "echopfl", "pace", "standalone"])
def test_a_run_through_wrappers_is_the_same_run(name):
    bare = simulator(make_strategy(name, {}), clients=4, devices="slow:0.4x5", stop=Stop(updates=20))
    wrapped = simulator(Counting(Wrapper(make_strategy(name, {}))), 4, "slow:0.4x5", Stop(updates=20))
    bare.run()
    wrapped.run()
    assert wrapped.strategy.count == 20
    assert digest(wrapped.strategy.inner.inner.save_state()) == digest(bare.strategy.save_state())
    assert wrapped.history.updates == bare.history.updates
    assert wrapped.traffic.bytes_down == bare.traffic.bytes_down


def test_wrappers_that_were_saved_in_the_middle_end_in_the_same_bits():
    def run(stop):
        server = Counting(Robust(make_strategy("casa", {}), 1.1, Mix(3, 0.5)))
        return simulator(server, clients=4, devices="slow:0.4x5", stop=Stop(updates=stop))

    whole, first, second = run(30), run(11), run(30)
    whole.run()
    first.run()
    second.load_state(unpack(*pack(first.save_state() | {"_finished": False})))
    second.run()
    assert second.strategy.count == 30
    assert second.strategy.held_back == whole.strategy.held_back > 0
    assert digest(second.strategy.save_state()) == digest(whole.strategy.save_state())


@pytest.mark.parametrize("between", [lambda inner: inner, Wrapper])
def test_two_wrappers_of_one_class_are_refused(between):
    inner = between(Counting(make_strategy("fedasync", {})))
    with pytest.raises(StrategyError, match="Counting is wrapped around another Counting"):
        Counting(inner)


def test_branches_are_named_as_without_a_wrapper():
    bare, wrapped = (begun(made, vector(0, 0)) for made in (make_strategy("casa", {}), robust_casa()))
    assert [name for name, _ in branches(wrapped.save_state())] == [name for name, _ in branches(bare.save_state())]


def robust_casa():
    return Robust(make_strategy("casa", {}), 2.0, None)


def test_the_state_that_cannot_be_saved_is_named_by_its_method():
    class Sets(Strategy):
        def setup(self):
            self.seen = set()

        def save_state(self):
            return {"seen": self.seen}

    server = Robust(Sets(), 2.0, None)
    server.begin(Setting(vector(0.0), None))
    with pytest.raises(StrategyError, match="the state 'seen' of Sets cannot be saved"):
        check_packable(server)
