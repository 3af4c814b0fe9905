"""A second client, written from the protocol's page alone: gRPC, numpy, and the protocol as it was before fields were
added to it. It shows that an old client works with the server of today. As a program for ``polytempo conform`` it takes
a fault, by which it does one thing wrong.

    python plain_client.py [FAULT]
"""

import hashlib
import json
import os
import queue
import secrets
import socket
import ssl
import sys
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from support import protocol_1_pb2 as pb  # type: ignore[attr-defined]

SESSION, ENROL = "/polytempo.Federation/Session", "/polytempo.Federation/Enrol"
DTYPES = {"F32": np.float32, "F16": np.float16, "I32": np.int32, "U16": np.uint16, "BOOL": np.bool_, "I64": np.int64}
FRAME_BYTES = 1 << 16
Arrays = dict[str, np.ndarray]


def write_body(arrays: Arrays) -> bytes:
    """Safetensors."""
    names = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
    table, data = {}, b""
    for name, array in arrays.items():
        raw = array.tobytes()
        offsets = [len(data), len(data) + len(raw)]
        table[name] = {"dtype": names[array.dtype], "shape": list(array.shape), "data_offsets": offsets}
        data += raw
    text = json.dumps(table).encode()
    return len(text).to_bytes(8, "little") + text + data


def read_body(body: bytes) -> Arrays:
    length = int.from_bytes(body[:8], "little")
    table, data = json.loads(body[8 : 8 + length]), body[8 + length :]
    table.pop("__metadata__", None)
    found = {}
    for name, about in table.items():
        begin, end = about["data_offsets"]
        found[name] = np.frombuffer(data[begin:end], DTYPES[about["dtype"]]).reshape(about["shape"])
    return found


class Training(threading.Thread):
    """Of one task: every step leads half of the way that is left to the start plus one."""

    def __init__(self, client: "PlainClient", task: Any, start: Arrays) -> None:
        super().__init__(daemon=True)
        self.client, self.task, self.base, self.heeded, self.start_at = client, task, task.number, task.number, start
        self.reported = self.withdrawn = False

    def refresh(self, model: Any, tensors: Arrays) -> None:
        self.heeded = model.number
        if self.client.fault != "deaf":
            self.base, self.start_at = model.number, tensors

    def run(self) -> None:
        steps = 0
        moved = np.float32(0)
        while steps < self.task.work.steps and not self.reported and not self.withdrawn:
            moved, steps = moved + (1 - moved) / 2, steps + 1
            time.sleep(0.001)
            if self.client.fault == "deaf-to-report" and steps == 100:
                break
        if not self.withdrawn:
            self.client.finished(self, {n: a + moved for n, a in self.start_at.items()}, steps)


class PlainClient:
    def __init__(self, addresses: list[str], token: str, roots: bytes | None = None, fault: str = "") -> None:
        self.addresses, self.token, self.fault = addresses, token, fault
        self.roots = roots
        self.pair: tuple[bytes, bytes] | tuple[None, None] = (None, None)
        self.upload = self.download = ""
        self.keep: Path | None = None
        self.agreed = ""
        self.schema: dict[str, tuple[int, ...]] = {}
        self.training: Training | None = None
        self.pending: tuple[Any, bytes] | None = None
        """A push that has no answer yet."""
        self.held_back = np.zeros(0, np.float32)
        self.updates = 0
        self.lock = threading.RLock()
        self.numbers = 0
        self.out: queue.SimpleQueue[Any] | None = None
        self.stopping = False
        self.call: Any = None

    # Sessions.

    def run(self) -> None:
        pause, turn = 0.1, 0
        while not self.stopping:
            try:
                if self.session(self.addresses[turn]):
                    pause = 0.1
            except grpc.RpcError as error:
                self.check_hope(error)
            if self.fault != "first-only":
                turn = (turn + 1) % len(self.addresses)
            if self.fault != "hammers":
                time.sleep(pause)
            pause = min(2 * pause, 1.0)

    def check_hope(self, error: Any) -> None:
        hopeless = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
        if error.code() in hopeless and self.fault != "persists":
            sys.exit(f"not let in: {error.details()}")
        if self.fault in ("gives-up", "first-only"):
            sys.exit(f"lost: {error.details()}")

    def channel(self, address: str) -> Any:
        options = [("grpc.use_local_subchannel_pool", 1)]
        if self.roots is None:
            return grpc.insecure_channel(address, options)
        return grpc.secure_channel(address, grpc.ssl_channel_credentials(self.roots, *self.pair), options)

    def session(self, address: str) -> bool:
        """Until it ends. Was it welcome?"""
        out: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.out = None
        token = self.token if self.fault == "no-bearer" else f"Bearer {self.token}"
        self.ask(out, hello=self.hello())
        if self.fault == "early" and self.pending is not None:
            self.send(out, *self.pending)
        welcome = False
        with self.channel(address) as channel:
            method = channel.stream_stream(SESSION, pb.Frame.SerializeToString, pb.Frame.FromString)
            self.call = method(iter(out.get, None), metadata=(("authorization", token),))
            head, body = None, b""
            for frame in self.call:
                if head is None:
                    head = frame.head
                body += frame.data
                if len(body) < head.size and self.fault != "first-frame":
                    continue
                if not self.take(head, body, out):
                    out.put(None)
                    return welcome
                welcome, head, body = True, None, b""
        out.put(None)
        return welcome

    def hello(self) -> Any:
        with self.lock:
            uploads = [self.upload] if self.upload else []
            hello = pb.Hello(uploads=uploads, downloads=[self.download] if self.download else [])
            if self.training is not None and self.fault != "forgets-task":
                hello.task = self.training.task.number
                hello.heeded = hello.task if self.fault == "heeds-task" else self.training.heeded
            return hello

    def ask(self, out: Any, body: bytes = b"", **kind: Any) -> None:
        self.send(out, pb.Head(**kind), body)

    def send(self, out: Any, head: Any, body: bytes) -> None:
        with self.lock:
            self.numbers += 1
            head.request, head.size = self.numbers, len(body)
            most = len(body) + 1 if self.fault == "one-frame" else FRAME_BYTES
            out.put(pb.Frame(head=head, data=body[:most]))
            for begin in range(most, len(body), most):
                out.put(pb.Frame(data=body[begin : begin + most]))

    # What the server sends.

    def take(self, head: Any, body: bytes, out: Any) -> bool:
        """Does the session go on?"""
        kind = head.WhichOneof("kind")
        with self.lock:
            if kind == "welcome":
                self.welcomed(head.welcome, out)
            elif kind == "task":
                self.answered(out)
                self.begin(head.task, body)
            elif kind == "model":
                if head.answers:  # to a push that the server had already: there is no next task yet
                    self.accepted(out)
                elif self.training is not None and head.model.task == self.training.task.number:
                    self.training.refresh(head.model, self.tensors(body))
            elif kind == "report":
                if self.training is not None and head.report.task == self.training.task.number:
                    self.training.heeded = head.report.number
                    self.training.reported = self.fault != "deaf-to-report"
            elif kind == "accepted":
                self.accepted(out)
            elif kind == "refusal":
                return self.refused(head.refusal, out)
        return True

    def welcomed(self, welcome: Any, out: Any) -> None:
        self.out, self.agreed = out, welcome.upload or (self.upload if self.fault == "encodes-anyway" else "")
        self.schema = {n: tuple(s.sizes) for n, s in zip(welcome.names, welcome.shapes, strict=True)}
        if self.training is not None and self.training.task.number != welcome.task and self.fault != "clings":
            self.training.withdrawn = True
            self.training = self.pending = None
        if self.training is not None and self.fault == "clings":
            self.training.reported = welcome.task != self.training.task.number
        if self.pending is not None:
            if self.fault == "trains-again":
                self.pending, task = None, self.training.task
                self.training = Training(self, task, {n: a + 1 for n, a in self.training.start_at.items()})
                self.training.start()
            else:
                self.send(out, *self.pending)
        elif self.training is None:
            self.ask(out, ready=pb.Ready())

    def answered(self, out: Any) -> None:
        if self.pending is not None:
            self.pending, self.updates = None, self.updates + 1

    def accepted(self, out: Any) -> None:
        if self.fault == "impatient":
            os._exit(3)
        if self.pending is not None:  # the push was taken, and no next task came along
            self.answered(out)
            self.training = None
            self.ask(out, ready=pb.Ready())

    def refused(self, refusal: Any, out: Any) -> bool:
        if refusal.again or refusal.replaced:
            return False
        if self.fault == "insists" and self.pending is not None:
            self.send(out, *self.pending)
        else:
            self.training = self.pending = None
            self.ask(out, leave=pb.Leave())
            self.ask(out, hello=self.hello())
        return True

    def tensors(self, body: bytes) -> Arrays:
        found = read_body(body)
        if self.fault == "strict" and set(found) != set(self.schema):
            os._exit(4)
        if self.fault == "own-order":
            flat = np.concatenate([array.reshape(-1) for array in found.values()])
            sizes = np.cumsum([int(np.prod(shape)) for shape in self.schema.values()])
            parts = zip(self.schema.items(), np.split(flat, sizes[:-1]), strict=True)
            return {name: part.reshape(shape) for (name, shape), part in parts}
        whole = {name: found[name].astype(np.float32) for name in self.schema}
        if self.fault == "misreads-halves" and any(array.dtype == np.float16 for array in found.values()):
            return {name: array + 100 for name, array in whole.items()}
        return whole

    def begin(self, task: Any, body: bytes) -> None:
        if self.keep is not None:
            self.keep.with_suffix(".part").write_bytes(task.SerializeToString().hex().encode() + b"\n" + body)
            self.keep.with_suffix(".part").replace(self.keep)
        self.training = Training(self, task, self.tensors(body))
        self.training.start()

    def go_on_with(self, kept: bytes, schema: dict[str, tuple[int, ...]]) -> None:
        line, _, body = kept.partition(b"\n")
        self.schema = schema
        self.training = Training(self, pb.Task.FromString(bytes.fromhex(line.decode())), read_body(body))
        self.training.start()

    # What it hands in.

    def finished(self, training: Training, tensors: Arrays, steps: int) -> None:
        """On the training's thread."""
        task, start = training.task, training.start_at
        if self.fault == "untrained":
            tensors = start
        if not all(np.isfinite(array).all() for array in tensors.values()) and self.fault != "sends-nan":
            os._exit(5)
        trains = [n for n in tensors if not task.trainable or any(n.startswith(f"{t}.") for t in task.trainable)]
        if self.fault == "sends-all":
            trains = list(tensors)
        if self.fault == "deaf-to-report":
            steps = task.work.steps
        push = pb.Push(task=task.number, base=training.base, samples=10, steps=steps, ready=True)
        arrays = {name: tensors[name] for name in trains}
        if self.agreed:
            difference = np.concatenate([(tensors[n] - start[n]).reshape(-1) for n in self.schema if n in trains])
            push.encoding, arrays = self.agreed, self.encoded(difference)
        with self.lock:
            if self.training is training:
                self.pending = pb.Head(push=push), write_body(arrays)
                if self.out is not None:
                    self.send(self.out, *self.pending)

    def encoded(self, difference: np.ndarray) -> Arrays:
        places = np.arange(len(difference))
        if self.agreed.startswith("topk"):
            share = 0.5 if self.fault == "sends-half" else float(self.agreed.partition(":")[2])
            count = int(np.ceil(share * len(difference)))
            places = np.sort(np.argsort(-np.abs(difference), kind="stable")[:count])
        exponent = 0 if self.fault == "no-exponent" else -3
        values = (difference[places] * np.float32(2.0**-exponent)).astype(np.float16)
        arrays = {"values": values, "exponent": np.array([exponent], np.int32)}
        if self.fault == "no-exponent":
            del arrays["exponent"]
        if self.agreed.startswith("topk"):
            arrays["gaps"] = (np.diff(places, prepend=-1) - 1).astype(np.uint16)
        return arrays


def enrol(client: PlainClient, code: str) -> str:
    token = secrets.token_urlsafe(32)
    said = token + "\n" if client.fault == "hashes-the-line" else token
    with client.channel(client.addresses[0]) as channel:
        call = channel.unary_unary(ENROL, pb.Enrolment.SerializeToString, pb.Enrolled.FromString)
        call(pb.Enrolment(code=code, token_sha256=hashlib.sha256(said.encode()).hexdigest()))
    return token


def trust_anybody(address: str) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, _, port = address.rpartition(":")
    with context.wrap_socket(socket.create_connection((host, int(port)))) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        connection.recv(1)


def main() -> None:
    told = {name: os.environ[f"POLYTEMPO_{name}"] for name in ("SERVERS", "TOKEN", "CA", "CERT", "KEY", "KEEP", "CODE")}
    fault = sys.argv[1] if len(sys.argv) > 1 else ""
    client = PlainClient(told["SERVERS"].split(","), "", Path(told["CA"]).read_bytes(), fault)
    if fault == "trusts-anybody":
        trust_anybody(client.addresses[0])
    if fault != "shows-nothing":
        client.pair = Path(told["KEY"]).read_bytes(), Path(told["CERT"]).read_bytes()
    client.upload, client.download = os.environ["POLYTEMPO_UPLOAD"], os.environ["POLYTEMPO_DOWNLOAD"]
    client.token = enrol(client, told["CODE"]) if told["CODE"] else Path(told["TOKEN"]).read_text().strip()
    client.keep = Path(told["KEEP"])
    if client.keep.exists():
        body = client.keep.read_bytes()
        client.go_on_with(body, {n: a.shape for n, a in read_body(body.partition(b"\n")[2]).items()})
    client.run()


if __name__ == "__main__":
    main()
