"""A run that is cut at any event and continued from its saved state ends with the same bits, with everything going on
at once: timers, refreshes, early reports, pulls, losses, late joiners, pauses, drift, speed changes, slow networks."""

import pytest

from polytempo.core.state import digest, load, save
from polytempo.sim.records.evaluation import Stop
from polytempo.strategies.base.participation import Quota
from polytempo.testing import simulator
from polytempo.world.drift import Drift
from support.bustle import DEVICES, BusyFedAsync, BusyFedAvg, BusyStandalone
from support.plugs import PulledPlugError


def build(method, quota, drift, devices, engine):
    stop = Stop(updates=25)
    sim = simulator(method(), 6, devices, stop, participation=quota, drifts=(drift,), workers=2, engine=engine)
    sim.eval_every = 4
    return sim


def fingerprint(sim):
    history = sim.history
    return digest(
        sim.save_state()["strategy"], history.evaluations, history.updates, history.marks, sim.traffic.bytes_down
    )


SWAP = Drift(at=(9.0, 15.0), kind="swap", labels=((0, 1),), clients=0.5)
MIXTURE = Drift(after=2, every=2, kind="mixture")


@pytest.mark.parametrize("engine", ["eager", "fused"])
@pytest.mark.parametrize(
    ("method", "quota", "drift"),
    [
        (BusyFedAsync, Quota(), SWAP),
        (BusyFedAsync, Quota(count=2, choice="round-robin"), MIXTURE),
        (BusyFedAvg, Quota(share=0.5), SWAP),
        (BusyFedAvg, Quota(count=2), MIXTURE),
        (BusyStandalone, Quota(count=2), SWAP),
    ],
)
def test_a_run_cut_at_any_event_ends_bit_identical(tmp_path, method, quota, drift, engine):
    devices = tmp_path / "devices.toml"
    devices.write_text(DEVICES)
    arguments = (method, quota, drift, str(devices), engine)
    whole, events = build(*arguments), []
    whole.run(lambda: events.append(whole.now))
    assert {"refresh", "report", "pull", "left", "joined", "drift"} <= {mark["kind"] for mark in whole.history.marks}
    for cut in range(1, len(events), max(1, len(events) // 12)):
        sim, count = build(*arguments), []

        def stop_at_the_cut(sim=sim, count=count, cut=cut):
            count.append(None)
            if len(count) == cut:
                save(sim.save_state(), tmp_path / "state")
                raise PulledPlugError

        with pytest.raises(PulledPlugError):
            sim.run(stop_at_the_cut)
        resumed = build(*arguments)
        for name in ("evaluations", "updates", "marks"):
            getattr(resumed.history, name).extend(getattr(sim.history, name))
        resumed.load_state(load(tmp_path / "state"))
        resumed.run()
        assert fingerprint(resumed) == fingerprint(whole), cut
