"""``polytempo conform``: judge a client program of anybody's, in any language."""

from typing import Annotated

import typer

from polytempo.cli.options import Json
from polytempo.serve.conform.judging import Judgement, as_json, chosen_points, conforms, judge


def conform(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="the client program and its arguments")],
    only: Annotated[str | None, typer.Option(metavar="POINT,...", help="judge these points only")] = None,
    without: Annotated[
        str | None, typer.Option(metavar="POINT,...", help="leave these points out, such as what it does not offer")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="longest wait for anything that it should do")] = 30.0,
    as_json_: Json = False,
) -> None:
    """Judge a client program, point by point, as a server that plays a script. Exit code 1: it does not conform."""

    def show(judgement: Judgement) -> None:
        if not as_json_:
            print(judgement, flush=True)

    judgements = judge(command, chosen_points(only, without), seconds, show)
    if as_json_:
        print(as_json(judgements))
    else:
        missed = sum(one.verdict == "not met" for one in judgements)
        print(f"{len(judgements)} points, {missed} not met" if missed else f"It conforms: {len(judgements)} points.")
    if not conforms(judgements):
        raise typer.Exit(1)
