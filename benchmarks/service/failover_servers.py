"""The servers of ``failover.py``, and what their database notes for it."""

import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from serving_faults import free_port

from polytempo.serve.storage.address import note_database

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from support.postgres import DATABASE, Server
from support.proxy import Proxy

POLYTEMPO = [sys.executable, "-c", "from polytempo.cli.main import main; main()"]
TIME_LIMIT = 120.0
"""Seconds that anything may take."""
WITNESS = """
CREATE SCHEMA witness;
CREATE TABLE witness.arrivals (number bigint, epoch bigint, client bigint, task bigint);
CREATE TABLE witness.leads (epoch bigint, holder text);
CREATE FUNCTION witness.arrived() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO witness.arrivals SELECT NEW.number, epoch, NEW.client, (NEW.detail::json ->> 'task')::bigint FROM lease;
    RETURN NULL; END $$;
CREATE FUNCTION witness.led() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO witness.leads VALUES (NEW.epoch, NEW.holder); RETURN NULL; END $$;
CREATE TRIGGER arrived AFTER INSERT ON events FOR EACH ROW WHEN (NEW.kind = 'updated')
    EXECUTE FUNCTION witness.arrived();
CREATE TRIGGER led AFTER UPDATE ON lease FOR EACH ROW WHEN (NEW.epoch <> OLD.epoch) EXECUTE FUNCTION witness.led();
INSERT INTO witness.leads SELECT epoch, holder FROM lease;
"""
"""The database itself notes in which epoch each update was written, and who held it: snapshots let the journal forget.
An epoch that is read in a transaction is the one that its fence checks, or the transaction fails."""


class Member:
    """One of the two servers."""

    def __init__(self, directory: Path, database: Server, words: Sequence[str], after: int = 27_000) -> None:
        def connect() -> socket.socket:
            connected = socket.socket(socket.AF_UNIX)
            connected.connect(str(next(database.directory.glob(".s.PGSQL.*[0-9]"))))
            return connected

        self.directory, self.proxy = directory, Proxy(connect)
        note_database(directory, f"postgresql://postgres@127.0.0.1:{self.proxy.port}/{DATABASE}?schema=service")
        self.port = free_port(after + 1)
        self.address = f"127.0.0.1:{self.port}"
        self._command = [*POLYTEMPO, "serve", *words, "--dir", str(directory), "--listen", self.address]
        self.start()

    def start(self) -> None:
        with (self.directory / "stderr.log").open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=log)

    def leads(self, holder: str) -> bool:
        """Holders have the number of their process in their names."""
        return f" {self.process.pid} " in holder

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(TIME_LIMIT)
