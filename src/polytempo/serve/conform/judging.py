"""A client program, judged point by point."""

import json
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from polytempo.core.errors import UserError
from polytempo.serve.conform.points import NotOfferedError, points
from polytempo.serve.conform.scene import Kit, Scene
from polytempo.serve.conform.stage import NotMetError
from polytempo_client.imports import unknown

Verdict = Literal["met", "not met", "not offered"]


@dataclass(frozen=True)
class Judgement:
    """Of one point."""

    point: str
    title: str
    verdict: Verdict
    reason: str
    """Why not, if it is not met or not offered."""
    seconds: float

    def __str__(self) -> str:
        line = f"{self.verdict:11} {self.point}: {self.title}"
        return f"{line}\n            {self.reason}" if self.reason else line


def chosen_points(only: str | None = None, without: str | None = None) -> list[str]:
    """Names of points: those of ``only``, or all, but for those of ``without``; both in words with commas between."""
    left_out = _names(without)
    return [name for name in (_names(only) or points) if name not in left_out]


def judge(
    command: Sequence[str],
    names: Iterable[str],
    seconds: float,
    told: Callable[[Judgement], None] = lambda judgement: None,
) -> list[Judgement]:
    """Judge what this command does, point by point. ``seconds`` is the longest wait for anything that it should do."""
    with tempfile.TemporaryDirectory(prefix="polytempo-conform-") as directory:
        kit = Kit.make(Path(directory) / "service")
        judgements = []
        for name in names:
            room = Path(directory) / name
            room.mkdir()
            judgements.append(_judged(name, Scene(command, kit, room, seconds)))
            told(judgements[-1])
        return judgements


def _judged(name: str, scene: Scene) -> Judgement:
    point = points[name]
    began = time.monotonic()
    verdict: Verdict = "met"
    reason = ""
    try:
        point.script(scene)
    except NotMetError as error:
        verdict, reason = "not met", str(error)
    except NotOfferedError as error:
        verdict, reason = "not offered", str(error)
    finally:
        scene.close()
    return Judgement(name, point.title, verdict, reason, round(time.monotonic() - began, 2))


def as_json(judgements: Sequence[Judgement]) -> str:
    counts = {verdict: sum(one.verdict == verdict for one in judgements) for verdict in get_args(Verdict)}
    return json.dumps({"conforms": conforms(judgements), **counts, "points": [asdict(one) for one in judgements]})


def conforms(judgements: Sequence[Judgement]) -> bool:
    return all(one.verdict != "not met" for one in judgements)


def _names(words: str | None) -> list[str]:
    names = [name.strip() for name in (words or "").split(",") if name.strip()]
    for name in names:
        if name not in points:
            raise UserError(unknown("point", name, points))
    return names
