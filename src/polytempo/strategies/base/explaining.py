"""What the author of a method needs to know of an exception in it: the event, the method, and its own stack."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import polytempo
from polytempo.core.errors import StrategyError, UserError
from polytempo.strategies.base.strategy import Strategy
from polytempo.strategies.base.wrapper import Wrapper

SHOWN_FRAMES = 8
PACKAGE = polytempo.__path__[0] + "/"


@contextmanager
def explained(strategy: Strategy, event: str) -> Iterator[None]:
    """Let what a strategy raises be a StrategyError that says when, with the end of the strategy's own stack."""
    try:
        yield
    except UserError:
        raise
    except StrategyError as error:
        raise StrategyError(f"{_name(strategy)} fails at {event}: {error}") from error
    except (Exception, SystemExit) as error:
        raised = "".join(traceback.format_exception_only(error)).strip()
        raise StrategyError(f"{_name(strategy)} fails at {event}: {raised}\n{own_stack(error)}") from error


def _name(strategy: Strategy) -> str:
    while isinstance(strategy, Wrapper):
        strategy = strategy.inner
    return type(strategy).__name__


def own_stack(error: BaseException) -> str:
    """From the first line that is not Polytempo's on. Of a method of Polytempo's own: the last lines."""
    frames = traceback.extract_tb(error.__traceback__)
    own = next((i for i, frame in enumerate(frames) if not frame.filename.startswith(PACKAGE)), 0)
    return "".join(traceback.format_list(frames[own:][-SHOWN_FRAMES:])).rstrip()
