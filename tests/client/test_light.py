"""A client where there is nothing but numpy and grpc: it trains, encodes, counts and pushes all the same."""

import json
import subprocess
import sys
from pathlib import Path

from support.absence import HEAVY, without
from support.serving import running

SCRIPT = """
import json
from polytempo import Client, Encodings, Ledger, Privacy

ledger = Ledger(Privacy(1.0, 0.5))
encodings = Encodings("topk:0.5", download="fp16")
with Client({address!r}, {token!r}, insecure=True, encodings=encodings) as client:
    client.run(lambda task: (ledger.release(task, task.tensors), 5), updates=2)
    task = client.task(30)
    client.push(task, task.tensors, samples=5, answers={{"seen": [1, 2.5]}}, timeout=30)
    member = client.branch(30)
    client.leave(30)
print(json.dumps([ledger.updates, member.branch, sorted({heavy!r} & sys.modules.keys())]))
"""


def test_a_client_takes_part_with_numpy_and_grpc_only(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        script = without(HEAVY) + SCRIPT.format(address=server.address, token=server.token(0), heavy=HEAVY)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == [2, 0, []]
        assert server.host.service.members[0].updates == 3
