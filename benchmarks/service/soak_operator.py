"""The operator of ``soak.py``: looks at the figures of the page and at the metrics, lets the settings be read again,
makes backups and restores them, and revokes clients, who enrol anew with a code, while clients work and the server is
killed."""

import http.client
import json
import shutil
import sqlite3
import ssl
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from polytempo.core.errors import UserError
from polytempo.serve.paths import BACKUP_PUBLIC_KEY, DATABASE
from polytempo.serve.process.backup import back_up, restore
from polytempo_client.session.credentials import read_token
from polytempo_client.streams import stream

EVERY = {"look": 5.0, "reload": 47.0, "revoke": 29.0, "let in again": 1.0, "back up": 113.0}
"""Seconds between two of each."""
AT_ONCE = 1.5
"""Seconds in which a revoked client has to be out: half a second is promised, and the machine is busy."""


class Operator:
    """Works on a thread of its own until told to stop. Codes for revoked clients lie in ``codes``."""

    def __init__(self, directory: Path, port: int, honest: range, seed: int) -> None:
        self.directory, self.codes = directory, directory / "codes"
        self.codes.mkdir()
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._port, self._honest = port, honest
        self._token = read_token(directory / "operator-anna.token")
        self._context = ssl.create_default_context(cafile=str(directory / "ca.pem"))
        self._random = stream(seed, "soak-operator")
        self._revoked: dict[int, float] = {}
        """Who has no code yet, and when the server had said that it was done."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """When everybody is let in again; the server has to be up."""
        self._stopping.set()
        self._thread.join()
        while self._revoked:
            self._let_in_again()
            time.sleep(0.1)

    def _work(self) -> None:
        due = {what: time.monotonic() + seconds for what, seconds in EVERY.items()}
        acts = {"look": self._look, "reload": self._reload, "revoke": self._revoke}
        acts |= {"let in again": self._let_in_again, "back up": self._back_up}
        while not self._stopping.wait(0.5):
            for what in [what for what in due if due[what] <= time.monotonic()]:
                due[what] = time.monotonic() + EVERY[what]
                try:
                    acts[what]()
                    self.counts[f"operator: {what}"] += 1
                except (OSError, http.client.HTTPException):  # the server is down, or was killed meanwhile
                    self.counts["operator: no answer"] += 1

    def _look(self) -> None:
        shown = json.loads(self._ask("GET", "/api/status"))
        if shown["status"] and shown["status"]["access_problem"]:
            self.wrong.append(f"the server cannot read access.json: {shown['status']['access_problem']}")
        if b"polytempo_updates_total" not in self._ask("GET", "/metrics"):
            self.wrong.append("the metrics lack the updates")

    def _reload(self) -> None:
        self._ask("POST", "/api/reload")

    def _revoke(self) -> None:
        client = int(self._random.choice(self._honest))
        if client in self._revoked or not self._is_back(client):
            return
        self._ask("POST", f"/api/clients/{client}/revoke")
        self._revoked[client] = time.time()

    def _let_in_again(self) -> None:
        """Whoever was revoked long enough ago gets a code."""
        for client, at in list(self._revoked.items()):
            if time.time() > at + 2 * AT_ONCE:
                self._check_nothing_came(client, at)
                code = json.loads(self._ask("POST", "/api/codes", {"client": client, "days": 1}))["code"]
                whole = self.codes / f".{client}"
                whole.write_text(code)
                whole.rename(self.codes / str(client))
                del self._revoked[client]

    def _check_nothing_came(self, client: int, revoked: float) -> None:
        with closing(sqlite3.connect(self.directory / "journal" / DATABASE, timeout=30)) as database:
            rows = database.execute(
                "SELECT wall FROM events WHERE kind = 'updated' AND client = ? AND wall > ?",
                (client, revoked + AT_ONCE),
            ).fetchall()
        if rows:
            self.wrong.append(f"client {client} handed in an update {rows[0][0] - revoked:.1f} s after it was revoked")

    def _is_back(self, client: int) -> bool:
        return not (self.codes / str(client)).exists()

    def _back_up(self) -> None:
        copy, again = self.directory / "backup", self.directory / "restored"
        try:
            manifest = back_up(self.directory, copy).manifest
            restored = restore(copy, again, key=self.directory / BACKUP_PUBLIC_KEY)
            if restored.event != manifest.event:
                self.wrong.append(f"a backup of event {manifest.event} was restored to {restored.event}")
        except UserError as error:
            self.wrong.append(f"a backup failed: {error}")
        finally:
            shutil.rmtree(copy, ignore_errors=True)
            shutil.rmtree(again, ignore_errors=True)

    def _ask(self, method: str, path: str, body: Any = None) -> bytes:
        connection = http.client.HTTPSConnection("localhost", self._port, timeout=30, context=self._context)
        headers = {"Authorization": f"Bearer {self._token}"}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            self.wrong.append(f"{method} {path} was answered with {answer.status}: {body[:200]!r}")
        return body
