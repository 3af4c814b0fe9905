"""Why a simulation cannot go on."""

from polytempo.core.errors import DivergenceError, StrategyError


def stalled(updates: int, now: float) -> StrategyError:
    """Nobody is in training, and nothing is awaited."""
    return StrategyError(
        f"nothing happens any more after {updates} updates at {now:,.1f} s: no client is in training and no timer is "
        "set"
    )


def diverging(refused: int) -> DivergenceError:
    """Update after update holds NaN or Inf."""
    return DivergenceError(
        f"Training diverges: the last {refused} updates held NaN or Inf and were refused. Lower the learning rate "
        "(--lr)."
    )
