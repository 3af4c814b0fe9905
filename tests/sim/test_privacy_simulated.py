"""Privacy in the simulator: what arrives is clipped and blurred, the same at every repeat, and its epsilon is told."""

from collections import Counter

import pytest
import torch

from polytempo import simulate
from polytempo.core.errors import UserError
from polytempo.sim.uploads import Uploads
from polytempo.testing import update
from polytempo_client.privacy import Privacy, epsilon

SMALL = {"clients": 5, "updates": 30, "partition": "iid"}


def test_a_run_with_noise_repeats_bit_for_bit_whatever_the_workers() -> None:
    digests = {simulate("fedasync", **SMALL, privacy="1:0.1", workers=workers).digest for workers in (1, 2)}
    assert len(digests) == 1


def test_a_clip_that_nothing_reaches_changes_no_bit() -> None:
    assert simulate("fedbuff", **SMALL, privacy="1e6:0").digest == simulate("fedbuff", **SMALL).digest


def test_much_noise_leaves_nothing_to_learn_from() -> None:
    assert simulate("fedasync", **SMALL, privacy="1:10").accuracy < simulate("fedasync", **SMALL).accuracy - 0.3


@pytest.mark.parametrize("setting", [{"privacy": "1:10"}, {"attack": "sign-flip:0.4:3"}, {"clip": 0.01}])
def test_who_trains_alone_sends_nothing_that_is_blurred_attacked_or_clipped(setting: dict[str, object]) -> None:
    assert simulate("standalone", **SMALL, **setting).digest == simulate("standalone", **SMALL).digest


def test_every_update_of_every_client_gets_noise_of_its_own() -> None:
    uploads, start = Uploads(seed=3, privacy=Privacy(1.0, 0.5)), torch.zeros(100)
    updates = [update(client, 0, start, start + 1) for client in (0, 1)]
    shown = [uploads.sent(trained, count).weights for trained in updates for count in (0, 1)]
    assert len({tuple(weights.tolist()) for weights in shown}) == 4
    trained = torch.arange(100) < 40
    moved = uploads.sent(updates[0], 0, trained).weights != start
    assert torch.equal(moved, trained)


def test_epsilon_is_that_of_the_client_with_the_most_updates() -> None:
    run = simulate("fedasync", **SMALL, privacy="1:2")
    most = max(Counter(row["client"] for row in run.update_log).values())
    assert run.epsilon == epsilon(most, 2.0, 1e-5)


@pytest.mark.parametrize("privacy", [None, "1:0"])
def test_without_noise_a_run_has_no_epsilon(privacy: str | None) -> None:
    assert simulate("fedasync", **SMALL, privacy=privacy).epsilon is None


@pytest.mark.parametrize(("strategy", "asked"), [("oort", "'loss-statistics'"), ("ifca", "'losses'")])
def test_a_method_that_asks_about_the_data_is_refused(strategy: str, asked: str) -> None:
    with pytest.raises(UserError, match=f"asks clients about their data, {asked}"):
        simulate(strategy, **SMALL, privacy="1:1")


def test_a_word_that_is_not_understood_is_refused_before_anything_begins() -> None:
    with pytest.raises(UserError, match="CLIP:NOISE"):
        simulate("fedasync", data="nothing", privacy="much")
