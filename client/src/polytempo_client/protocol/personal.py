"""The personal rule in messages: what a client is told beside its model, and what its jury says. Doubles travel as they
are, so that a served client decides as its simulated twin does."""

from polytempo_client.personal.rule import SHARES
from polytempo_client.personal.told import JuryScores, Personal
from polytempo_client.protocol import wire_pb2 as pb

MOST_SCORES = 16
"""Of a message that are looked at: one with more is of the wrong length all the same."""


def jury_message(scores: JuryScores) -> pb.JuryScores:
    return pb.JuryScores(rows=scores.rows, errors=scores.errors, briers=scores.briers, changed=scores.changed)


def jury_of(message: pb.JuryScores) -> JuryScores:
    """What the message says, be it true or not."""
    errors, briers = (tuple(scores[:MOST_SCORES]) for scores in (message.errors, message.briers))
    return JuryScores(message.rows, errors, briers, message.changed)


def personal_message(personal: Personal) -> pb.Personal:
    pool = None if personal.pool is None else jury_message(personal.pool)
    return pb.Personal(rule=personal.rule, parameters=personal.parameters, pool=pool)


def personal_of(message: pb.Task | pb.Model) -> Personal | None:
    """What the client is told beside the model; None if it is to use the model as it is."""
    if not message.HasField("personal"):
        return None
    told = message.personal
    pool = jury_of(told.pool) if told.HasField("pool") else None
    if pool is not None and not (pool.rows and len(pool.errors) == len(pool.briers) == len(SHARES)):
        pool = None  # of another version: the client decides without
    return Personal(told.rule, dict(told.parameters), pool)
