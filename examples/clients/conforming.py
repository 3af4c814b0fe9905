"""A program for `polytempo conform`: it takes part with the Python client, and its training is a few small steps."""

import os
import time
from pathlib import Path

from polytempo_client import Client, Encodings, enrol_client

TOLD = {name: os.environ[f"POLYTEMPO_{name}"] for name in ("SERVERS", "TOKEN", "CA", "CERT", "KEY", "KEEP", "CODE")}
ENCODINGS = Encodings(os.environ["POLYTEMPO_UPLOAD"], os.environ["POLYTEMPO_DOWNLOAD"])


def train(task):
    """Every step leads half of the way that is left to the start plus one."""
    start, moved, steps = task.tensors, 0.0, 0
    for _ in range(task.work.steps_for(10)):
        for model in task.refreshes():
            start = model.tensors
        if task.reported or task.withdrawn:
            break
        moved, steps = moved + (1 - moved) / 2, steps + 1
        time.sleep(0.001)
    return {name: array + moved for name, array in start.items()}, 10, {"steps": steps}


certificate = (TOLD["CERT"], TOLD["KEY"])
if TOLD["CODE"]:
    enrol_client(TOLD["SERVERS"], TOLD["CODE"], Path(TOLD["TOKEN"]), Path(TOLD["CA"]), certificate)
with Client(
    TOLD["SERVERS"], Path(TOLD["TOKEN"]), TOLD["CA"], certificate=certificate, keep=TOLD["KEEP"], encodings=ENCODINGS
) as client:
    client.run(train)
