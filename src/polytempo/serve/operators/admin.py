"""The operators' page of a service, its figures as JSON and for Prometheus, and a few actions. It shares the loop with
the clients' sessions, reads the host's status, and keeps no state of the service."""

import asyncio
import json
import logging
import math
import ssl
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from types import NoneType
from typing import Any

from polytempo.core.errors import UserError
from polytempo.serve.access.enrolment import CODE_HOURS
from polytempo.serve.access.roster import Operator
from polytempo.serve.addresses import peer_of
from polytempo.serve.operators.listener import LIFETIME, Listener
from polytempo.serve.operators.login_throttle import LoginThrottle
from polytempo.serve.server.pulse import Health
from polytempo_client.logs import log
from polytempo_client.session.addresses import check_loopback

try:
    from aiohttp import web
    from aiohttp.typedefs import Handler

    from polytempo.serve.operators.metrics import exposition
except ImportError:
    raise UserError(
        "The operators' page (--admin) needs the packages aiohttp and prometheus-client. Install them: "
        "pip install --constraint constraints.txt '.[operate]' in the source of Polytempo."
    ) from None

SILENT = logging.Logger("polytempo.serve.silent", logging.CRITICAL + 1)
"""What aiohttp would say of a malformed request quotes its headers, tokens included."""
LARGEST_BODY = 4096
WORTH_COMPRESSING = 4096
"""Bytes."""
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPERATOR = web.RequestKey("operator", Operator)
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Server": "polytempo",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True)
class Actions:
    """What an admin may do. Each raises ``UserError`` where there is nothing to do. The first three may take as long as
    a disk does and are called on a thread of their own, ``reload`` on the loop."""

    revoke: Callable[[int], None]
    release: Callable[[int], None]
    make_code: Callable[[int, float, float | None], str]
    """For a client, valid for so many hours; the token is for so many days, or for ever."""
    reload: Callable[[], None]


class Admin:
    """An HTTP server for operators. ``status`` is the service's last one; ``health`` how its host is
    doing."""

    def __init__(
        self,
        status: Callable[[], Mapping[str, Any]],
        operator_of: Callable[[str], Operator | None],
        actions: Actions,
        health: Callable[[], Health],
        lifetime: float = LIFETIME,
    ) -> None:
        self.throttle = LoginThrottle(operator_of)
        self._service_status, self._actions, self._health = status, actions, health
        self._replies: Counter[str] = Counter()
        self._page = {"/" if path.name == "index.html" else f"/{path.name}": path for path in _page_files()}
        self._public = frozenset(self._page) | {"/healthz"}
        self._runner = web.AppRunner(
            self._app(), access_log=None, logger=SILENT, lingering_time=1.0, shutdown_timeout=1.0
        )
        self._listener = Listener(self._protocol, lifetime)

    async def start(self, address: str, context: ssl.SSLContext | None) -> int:
        """Listen, over TLS; without it only on loopback. The port."""
        if context is None:
            check_loopback(address)
        await self._runner.setup()
        return await self._listener.open(address, context)

    async def stop(self) -> None:
        await self._listener.close()
        await self._runner.cleanup()

    def _protocol(self) -> asyncio.Protocol:
        assert self._runner.server is not None
        return self._runner.server()

    def _app(self) -> web.Application:
        app = web.Application(
            client_max_size=LARGEST_BODY,
            middlewares=[self._reply_to_errors, self._authenticate],
        )
        app.on_response_prepare.append(self._finish)
        for path in self._page:
            app.router.add_get(path, self._page_file, allow_head=False)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/metrics", self._metrics, allow_head=False)
        app.router.add_get("/api/status", self._status, allow_head=False)
        app.router.add_post(r"/api/clients/{client:\d{1,9}}/revoke", self._revoke)
        app.router.add_post(r"/api/clients/{client:\d{1,9}}/release", self._release)
        app.router.add_post("/api/codes", self._make_code)
        app.router.add_post("/api/reload", self._reload)
        return app

    # Every request.

    @web.middleware
    async def _reply_to_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._listener.note_request(request.transport)
        try:
            return await handler(request)
        except web.HTTPException as error:
            return _error(error.status, error.reason)
        except UserError as error:
            log("refused", level=logging.WARNING, kind="admin", reason=str(error), **_who(request))
            return _error(400, str(error))
        except Exception as error:
            log("admin failed", level=logging.ERROR, path=request.path, error=error)
            return _error(500, "The server could not do that; its log says why.")

    @web.middleware
    async def _authenticate(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path not in self._public:
            header = request.headers.get("Authorization", "")
            operator = await self.throttle.authenticate(header, peer_of(request.remote or "0.0.0.0"))
            if operator is None:
                return _error(401, "No operator has this token.", {"WWW-Authenticate": "Bearer"})
            request[OPERATOR] = operator
            self._listener.note_operator(request.transport)
            if request.method != "GET" and operator.role != "admin":
                log("operator may not", level=logging.WARNING, path=request.path, **_who(request))
                return _error(403, "Viewers may look, and only admins may act.")
        return await handler(request)

    async def _finish(self, _: web.Request, response: web.StreamResponse) -> None:
        self._replies[str(response.status)] += 1
        response.headers.update(HEADERS)
        response.force_close()  # one request per connection, so that a connection's lifetime bounds a request's

    # Looking.

    async def _page_file(self, request: web.Request) -> web.Response:
        path = self._page[request.path]
        return web.Response(body=path.read_bytes(), content_type=TYPES[path.suffix], charset="utf-8")

    async def _healthz(self, _: web.Request) -> web.Response:
        health = self._health()
        word, status = ("ok", 200) if health.is_healthy else ("unhealthy", 503)
        return web.Response(text=f"{word}\nlast loop {health.age:.1f} s ago\n", status=status)

    async def _metrics(self, _: web.Request) -> web.Response:
        replies = {**self._replies, "turned away": self._listener.turned_away}
        body = exposition(self._service_status(), replies)
        return _compressed(web.Response(body=body, headers={"Content-Type": METRICS_TYPE}))

    async def _status(self, request: web.Request) -> web.Response:
        name, role = request[OPERATOR]
        return _compressed(
            _json({"operator": name, "role": role, "now": time.time(), "status": dict(self._service_status())})
        )

    # Acting.

    async def _revoke(self, request: web.Request) -> web.Response:
        return await self._act(request, "revoke", self._actions.revoke)

    async def _release(self, request: web.Request) -> web.Response:
        return await self._act(request, "release", self._actions.release)

    async def _act(self, request: web.Request, what: str, act: Callable[[int], None]) -> web.Response:
        client = int(request.match_info["client"])
        await asyncio.to_thread(act, client)
        _log_act(request, what, client=client)
        return _json({"done": what, "client": client})

    async def _make_code(self, request: web.Request) -> web.Response:
        client, hours, days = _asked_code(await request.read())
        code = await asyncio.to_thread(self._actions.make_code, client, hours, days)
        _log_act(request, "code", client=client, hours=hours, days=days)
        return _json({"done": "code", "client": client, "hours": hours, "days": days, "code": code})

    async def _reload(self, request: web.Request) -> web.Response:
        self._actions.reload()
        _log_act(request, "reload")
        return _json({"done": "reload"})


def _page_files() -> list[Path]:
    return [path for path in Path(str(files("polytempo.serve.operators") / "web")).iterdir() if path.suffix in TYPES]


def _asked_code(body: bytes) -> tuple[int, float, float | None]:
    try:
        asked = json.loads(body)
        client, hours, days = asked.pop("client"), asked.pop("hours", CODE_HOURS), asked.pop("days", None)
        if type(client) is not int or type(hours) not in (int, float) or type(days) not in (int, float, NoneType):
            raise TypeError
        if asked:
            raise KeyError
        return client, float(hours), None if days is None else float(days)
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError, OverflowError):
        raise UserError(
            'A code is asked for with {"client": 3, "hours": 24, "days": 90}: a client\'s number, how long the code '
            "counts, and how long the token that it becomes (without days: for ever)."
        ) from None


def _log_act(request: web.Request, action: str, **what: Any) -> None:
    """As a warning, so that it stands in logs that hold nothing but what matters."""
    log("operator acted", level=logging.WARNING, action=action, **what, **_who(request))


def _who(request: web.Request) -> dict[str, Any]:
    operator = request.get(OPERATOR)
    return {"operator": operator.name if operator else "", "peer": request.remote or ""}


def _json(content: Mapping[str, Any]) -> web.Response:
    try:
        text = json.dumps(content, allow_nan=False)
    except ValueError:  # rare, and the way around it takes three times as long
        text = json.dumps(_plain(content))
    return web.Response(text=text, content_type="application/json")


def _plain(value: Any) -> Any:
    """With null in the place of numbers that JSON does not have."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _compressed(response: web.Response) -> web.Response:
    if isinstance(response.body, bytes) and len(response.body) > WORTH_COMPRESSING:
        response.enable_compression()
    return response


def _error(status: int, reason: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.json_response({"error": reason}, status=status, headers=headers)
