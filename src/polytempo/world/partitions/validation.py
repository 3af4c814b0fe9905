"""Validation rows: a part of each client's train rows that nobody trains on. Settings are chosen by them, so that the
test rows stay unseen until the choice is made."""

from dataclasses import replace

import numpy as np

from polytempo.core.errors import UserError
from polytempo.world.federation import Federation
from polytempo.world.partitions.deals import offsets
from polytempo_client.streams import stream


def keep_validation(federation: Federation, share: float, seed: int) -> Federation:
    """Take this share of each client's train rows, at random: at least one, and at least one remains to train. A client
    with a single train row has no validation rows. Share 0 changes nothing."""
    if share == 0:
        return federation
    if federation.pools is not None:
        raise UserError(
            "validation_share takes rows from each client's own train rows, but in this partition clients draw from "
            "pools that they share, and one client would train on another's validation rows. Take another partition, "
            "or validation_share 0."
        )
    sizes = np.diff(federation.train_off)
    kept = np.minimum(np.maximum(np.rint(sizes * share).astype(np.int64), 1), sizes - 1)
    holder = np.repeat(np.arange(len(federation)), sizes)
    order = np.lexsort((stream(seed, "validation").random(len(holder)), holder))  # by holder, in random order within
    rank = np.arange(len(holder)) - np.repeat(federation.train_off[:-1], sizes)
    chosen = np.zeros(len(holder), bool)
    chosen[order] = rank < kept[holder]
    return replace(
        federation,
        train_idx=federation.train_idx[~chosen],
        train_off=offsets(sizes - kept),
        validation_idx=federation.train_idx[chosen],
        validation_off=offsets(kept),
    )
