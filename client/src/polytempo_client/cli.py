"""``polytempo-client``: take part with a training loop of one's own, and turn a code into a token."""

import argparse
import sys
from collections.abc import Sequence
from getpass import getpass
from importlib import metadata
from pathlib import Path

from polytempo_client.ask_when import AskWhen
from polytempo_client.client import Client, Trained
from polytempo_client.errors import UserError, exit_code
from polytempo_client.imports import from_import_path
from polytempo_client.leaving import goodbye, stopped_by_signals, until_spent
from polytempo_client.logs import log_to
from polytempo_client.model.encodings import Encodings
from polytempo_client.privacy import Privacy
from polytempo_client.protocol.tasks import Task
from polytempo_client.session.addresses import Servers, servers_of
from polytempo_client.session.enrolment import enrol_client
from polytempo_client.session.tls import Pair, pair_of
from polytempo_client.updates.ledger import Ledger

PROGRAM = "polytempo-client"


def main(arguments: Sequence[str] | None = None) -> None:
    given = _parser().parse_args(arguments)
    try:
        given.command(given)
    except UserError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        sys.exit(exit_code(error))


def join(given: argparse.Namespace) -> None:
    """Take part until so many updates were pushed, or until Ctrl-C or SIGTERM."""
    log_to(level=given.log_level)
    train = from_import_path(given.train, "train")
    ledger = _ledger(given)
    ask = None
    if given.ask is not None:
        data, score = (path and from_import_path(path, "function") for path in (given.data, given.score))
        ask = AskWhen(given.ask, data, score)
        if ledger is not None:
            ask.check_private()

    def carried_out(task: Task) -> Trained:
        if ledger is None:
            trained: Trained = train(task)
            return trained
        ledger.check()
        tensors, samples, *more = train(task)
        steps = more[0].get("steps") if more else None
        return ledger.release(task, tensors), samples, {"steps": steps}

    with stopped_by_signals(PROGRAM), until_spent(), _client(given) as client, goodbye(client):
        # A refused update has left the client: with privacy, there are none to waste.
        client.run(carried_out, given.updates, refusals=None if ledger is None else 1, ask=ask)


def enrol(given: argparse.Namespace) -> None:
    """Turn a one-time code into this client's token."""
    code = given.code or getpass("Code: ")
    done = enrol_client(_servers(given).addresses, code, given.out, given.ca, _pair(given), insecure=given.insecure)
    until = "" if done.expires is None else f", valid until {done.expires:%Y-%m-%d %H:%M} UTC"
    print(f"this is client {done.client}; wrote {given.out}{until}")


def _client(given: argparse.Namespace) -> Client:
    return Client(
        _servers(given),
        given.token,
        given.ca,
        certificate=_pair(given),
        insecure=given.insecure,
        keep=given.keep,
        encodings=Encodings(given.upload, given.download),
    )


def _servers(given: argparse.Namespace) -> Servers:
    if (given.server is None) == (given.servers is None):
        raise UserError("Give the address of the server, HOST:PORT, or --servers with several of them.")
    return Servers(servers_of(given.server or given.servers).addresses, getattr(given, "give_up_after", None))


def _pair(given: argparse.Namespace) -> Pair | None:
    return pair_of(given.cert, given.key)


def _ledger(given: argparse.Namespace) -> Ledger | None:
    """What counts the updates of a client with privacy; None for one without."""
    if (given.clip_norm is None) != (given.noise is None):
        raise UserError("Privacy takes both --clip-norm and --noise: give both, or neither.")
    if given.noise is None:
        for option in ("epsilon", "ledger", "new_ledger"):
            if getattr(given, option):
                raise UserError(f"--{option.replace('_', '-')} belongs to privacy: give --clip-norm and --noise too.")
        return None
    if given.ledger is None and (given.epsilon is not None or given.new_ledger):
        raise UserError("--epsilon and --new-ledger need a --ledger: a limit that ends with the process is none.")
    privacy = Privacy(given.clip_norm, given.noise, given.delta)
    return Ledger(privacy, given.ledger, given.epsilon, new=given.new_ledger)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(PROGRAM, description="Take part in a Polytempo federation from any device.")
    parser.add_argument("--version", action="version", version=metadata.version(PROGRAM))
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command, add in ((join, _add_join), (enrol, _add_enrol)):
        made = commands.add_parser(command.__name__, help=command.__doc__, description=command.__doc__)
        made.set_defaults(command=command)
        _add_server(made)
        add(made)
    return parser


def _add_server(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("server", nargs="?", metavar="HOST:PORT", help="where the server listens")
    add("--servers", metavar="HOST:PORT,...", help="several addresses of one service")
    add("--ca", type=Path, help="the file with the certificate of the server's CA")
    add("--cert", type=Path, help="this client's certificate, where the server asks for it")
    add("--key", type=Path, help="the certificate's key")
    add("--insecure", action="store_true", help="plaintext instead of TLS; only on loopback")


def _add_join(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--train", required=True, metavar="FILE.py:FUNCTION", help="(task) -> tensors, samples[, arguments of push]")
    add("--token", required=True, type=Path, help="the file with this client's token")
    add("--updates", type=_positive, help="leave after so many updates (default: never)")
    add("--keep", type=Path, help="keep the open task in this file, and go on with it when started again")
    add("--upload", default="", help="how updates are encoded: fp16 or topk:SHARE (default: float32)")
    add("--download", default="", help="how models are, beside --upload: fp16 (default: float32)")
    add("--give-up-after", type=float, metavar="SECONDS", help="end after so long without a server (default: never)")
    add("--ask", metavar="POLICY", help="when to train and ask for the next model, such as every:60 (default: at once)")
    add("--data", metavar="FILE.py:FUNCTION", help="for --ask: () -> x, y, the client's rows as they are now")
    add("--score", metavar="FILE.py:FUNCTION", help="for --ask: (tensors, x, y) -> losses, and 1 where right")
    add("--clip-norm", type=float, help="privacy: updates are clipped to this length")
    add("--noise", type=float, help="privacy: noise on every number of an update, times the clip norm")
    add("--delta", type=float, default=1e-5, help="privacy: probability that epsilon does not hold (default: 1e-5)")
    add("--epsilon", type=float, help="privacy: leave before the update that would exceed this")
    add("--ledger", type=Path, help="privacy: the file that counts this client's updates")
    add("--new-ledger", action="store_true", help="privacy: begin the file, for data of which nothing has left yet")
    add("--log-level", default="info", choices=("debug", "info", "warning", "error"), help="what is logged on stderr")


def _add_enrol(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--code", help="the one-time code (default: it is asked for)")
    parser.add_argument("--out", type=Path, default=Path("client.token"), help="where the token goes")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number
