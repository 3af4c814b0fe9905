"""The client for Node (client/node) is a client like the Python one: it conforms, and trains for a real server. Needs
node 20 or later, and its packages (`npm ci --prefix client/node`)."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from polytempo.serve.access.certs import make_certs, make_client_certificate
from polytempo.serve.access.enrolment import make_code
from polytempo.serve.conform.judging import judge
from polytempo.serve.conform.points import points
from support import ROOT
from support.serving import running

HERE = ROOT / "client/node"
NODE = shutil.which("node")
OLDEST = 20
UPDATES = 5


def missing() -> str:
    """Why these tests cannot run; empty if they can."""
    if NODE is None:
        return "node is not installed"
    found = subprocess.run([NODE, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(found.removeprefix("v").partition(".")[0]) < OLDEST:
        return f"node is {found}; the client needs {OLDEST} or later"
    if not (HERE / "node_modules/@grpc/grpc-js").is_dir():
        return "the packages of the client for Node are not installed: npm ci --prefix client/node"
    return ""


WHY_NOT = missing()
pytestmark = [pytest.mark.node, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]


TRAIN = """
async function train(task) {
  return Object.fromEntries(Object.entries(task.tensors).map(([name, data]) => [name, data.map((x) => x + 0.01)]));
}
"""
ONCE = """
import { Client, enrol } from "INDEX";

const [servers, code, at] = process.argv.slice(2);
const certificate = { cert: `${at}/client-0.pem`, key: `${at}/client-0.key` };
const endpoint = { servers, ca: `${at}/ca.pem`, certificate };
const token = `${at}/own.token`;
await enrol({ ...endpoint, code, out: token });
const client = new Client({ ...endpoint, token, upload: "fp16", download: "fp16" });
const task = await client.task();
const trained = Object.entries(task.tensors).map(([name, data]) => [name, data.map((x) => x + 1)]);
await client.push(task, { tensors: Object.fromEntries(trained), samples: 5 }, false);
const { tensors } = await client.pull();
console.log(Math.max(...trained.map(([name]) => tensors[name][0] - task.start[name][0])));
await client.leave();
"""


def node(*arguments: object) -> "subprocess.CompletedProcess[str]":
    assert NODE is not None
    command = [NODE, *map(str, arguments)]
    return subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=400, check=False)


def test_its_own_tests_pass() -> None:
    done = node("--test", *sorted(HERE.glob("test/*.test.js")))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("point", points)
def test_the_node_client_conforms(point: str) -> None:
    assert NODE is not None
    (judgement,) = judge([NODE, str(HERE / "examples/conforming.js")], [point], 60.0)
    assert (judgement.verdict, judgement.reason) == ("met", "")


def test_a_model_in_plain_typescript_trains_for_a_real_server(tmp_path: Path) -> None:
    initial = {"weight": np.zeros((3, 4), np.float32), "bias": np.zeros(3, np.float32)}
    save_file(initial, tmp_path / "model.safetensors")
    make_certs(tmp_path, [])
    given = {"init": tmp_path / "model.safetensors", "steps": 200, "batch_size": 20, "lr": 0.2}
    with running(tmp_path, security="tls", clients=1, **given) as server:
        files = tmp_path / "client-0.token", tmp_path / "ca.pem"
        done = node(HERE / "examples/softmax.js", server.address, *files)
        assert (done.returncode, done.stderr) == (0, "")
        member = server.host.service.members[0]
        assert member.updates == UPDATES
        assert not server.shared.meters.refusals
        accuracies = [float(line.rpartition(" ")[2]) for line in done.stdout.splitlines()]
        assert len(accuracies) == UPDATES
        assert accuracies[-1] > 0.8 > accuracies[0]


@pytest.mark.parametrize("page", ["docs/guides/node-client.md", "client/node/README.md"])
def test_the_code_of_a_page_runs(tmp_path: Path, page: str) -> None:
    (block,) = re.findall(r"```js\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    program = tmp_path / "page.mjs"
    make_certs(tmp_path, [])
    with running(tmp_path, security="tls", clients=4) as server:
        given = {"polytempo-client": (HERE / "dist/index.js").as_uri(), "ca.pem": str(tmp_path / "ca.pem")}
        given |= {f"client-{i}.token": str(tmp_path / f"client-{i}.token") for i in (0, 3)}
        given |= dict.fromkeys(("127.0.0.1:7733", "fl.example.org:7733"), server.address)
        for name, here in given.items():
            block = block.replace(f'"{name}"', f'"{here}"')
        program.write_text(f"{block}\n{TRAIN}")
        done = node(program)
        assert (done.returncode, done.stderr) == (0, "")
        assert not server.shared.meters.refusals
        assert sum(member.updates for member in server.host.service.members.values()) in (5, 20)


def test_it_takes_part_with_a_certificate_an_enrolment_and_half_precision(tmp_path: Path) -> None:
    program = tmp_path / "once.mjs"
    program.write_text(ONCE.replace("INDEX", (HERE / "dist/index.js").as_uri()))
    make_certs(tmp_path, [])
    make_client_certificate(tmp_path, 0)
    with running(tmp_path, security="mtls", clients=1, encodings=("fp16",)) as server:
        done = node(program, server.address, make_code(tmp_path, 0), tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert 0.1 < float(done.stdout) <= 1.01  # the served model has moved by some of what was handed in
        assert not server.shared.meters.refusals


def test_a_server_of_another_authority_is_an_error_at_once(tmp_path: Path) -> None:
    service, stranger = tmp_path / "service", tmp_path / "stranger"
    for directory in (service, stranger):
        make_certs(directory, [])
    with running(service, security="tls", clients=1) as server:
        done = node(HERE / "examples/softmax.js", server.address, service / "client-0.token", stranger / "ca.pem")
    assert done.returncode == 1
    assert "CertificateError: 127.0.0.1:" in done.stderr


def test_what_is_shipped_is_what_was_compiled(tmp_path: Path) -> None:
    compiler = HERE / "node_modules/.bin/tsc"
    if not compiler.exists():
        pytest.skip("the TypeScript compiler is not installed: npm ci --prefix client/node")
    subprocess.run([compiler, "--outDir", tmp_path], cwd=HERE, check=True)
    made = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert made == {file.name: file.read_text() for file in (HERE / "dist").iterdir()}


def test_its_messages_are_those_of_the_protocol() -> None:
    assert (HERE / "wire.proto").read_bytes() == (ROOT / "client/src/polytempo_client/protocol/wire.proto").read_bytes()
