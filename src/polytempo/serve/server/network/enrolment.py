"""The server's side of enrolment: whoever brings a one-time code may make a token count. Strangers speak here, so they
may be few at a time, and say little."""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, cast

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from polytempo.core.errors import UserError
from polytempo.serve.access.enrolment import UNKNOWN_CODE, EnrolmentError, enrol
from polytempo.serve.access.tls import Context, common_names
from polytempo.serve.addresses import peer_named, peer_of
from polytempo.serve.server.network.incoming import RateLimit
from polytempo.serve.server.shared import Shared
from polytempo_client.logs import log
from polytempo_client.protocol.wire_pb2 import Enrolled, Enrolment

PER_SECOND = 10.0
"""With one code."""
AT_A_TIME, OF_PEER = 64, 8
"""In all, and from one address."""
SECONDS = 5.0
"""For a stranger to say its code."""


class Enrolments:
    """Those of one server. ``enforce`` is called when somebody's old token counts no more."""

    def __init__(self, shared: Shared, mutual: bool, enforce: Callable[[], None]) -> None:
        self._shared, self._mutual, self._enforce = shared, mutual, enforce
        self._open: Counter[str] = Counter()
        self._rates: defaultdict[int, RateLimit] = defaultdict(RateLimit)

    def __len__(self) -> int:
        """How many are under way."""
        return self._open.total()

    async def enrol(self, _: Any, context: Context) -> Enrolled:
        peer = peer_of(peer_named(context.peer())[0])
        if len(self) >= AT_A_TIME or self._open[peer] >= OF_PEER:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many enrol at the moment: try again")
        self._open[peer] += 1
        try:
            return await self._use_code(context)
        finally:
            self._open -= Counter([peer])

    async def _use_code(self, context: Context) -> Enrolled:
        access, loop = self._shared.access, asyncio.get_running_loop()
        names = common_names(context) if self._mutual else None
        try:
            asked = await self._read_code(context)
            access.refresh()
            if access.problem is not None:
                raise UserError(access.problem)
            known = access.roster.enrolee_of(asked.code, asked.token_sha256)
            if known is None:  # whoever guesses keeps nobody waiting, and costs no disk
                raise EnrolmentError(UNKNOWN_CODE)
            await asyncio.sleep(self._rates[known].take_turn(loop.time(), PER_SECOND))
            most_days = self._shared.operations.token_days
            client, expires = await asyncio.to_thread(
                enrol, access.directory, asked.code, asked.token_sha256, names, most_days
            )
        except UserError as error:
            self._shared.meters.refusals["code"] += 1
            log("enrolment refused", level=logging.WARNING, peer=context.peer(), reason=str(error))
            if isinstance(error, EnrolmentError):
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the server can enrol nobody now: try again")
        access.refresh()
        self._enforce()
        log("enrolled", level=logging.WARNING, client=client, peer=context.peer())
        return Enrolled(client=client, expires=0.0 if expires is None else expires.timestamp())

    async def _read_code(self, context: Context) -> Enrolment:
        try:
            async with asyncio.timeout(min(self._shared.operations.limits.hello_seconds, SECONDS)):
                read = await context.read()
        except (TimeoutError, DecodeError):
            read = grpc.aio.EOF
        if read is grpc.aio.EOF:
            raise EnrolmentError("An enrolment has to say its code at once.")
        return cast("Enrolment", read)
