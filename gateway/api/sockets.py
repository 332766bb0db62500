"""The WebSocket's request: accepted, its client's key proven by the first message if need be, then the conversation."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import trio

from gateway.admission.body_budget import Budget
from gateway.admission.slots import Slots
from gateway.api.outcomes import Outcomes
from gateway.api.plan import Handler, Plan
from gateway.contract.auth import UNPROVEN, unauthorized
from gateway.contract.operation import Operation
from gateway.contract.operations import OPERATIONS
from gateway.http.messages import Channel, ClientGone, Request, Response
from gateway.streams.hub import Live
from proto.model.errors import ErrorCode, TopicsError, invalid

if TYPE_CHECKING:
    from gateway.http.websocket import WebSocket

AUTH_S = 5.0
"""How long a client that opened a WebSocket without a key may take to send one."""
MAX_AUTH_BYTES = 8 << 10


class Sockets:
    def __init__(self, live: Live, budget: Budget, outcomes: Outcomes, streams: Slots) -> None:
        self._live = live
        self._budget = budget
        self._outcomes = outcomes
        self._streams = streams
        self._operations: dict[str, Operation] = {operation.name: operation for operation in OPERATIONS}
        self.handlers: dict[str, Handler] = {"websocket": self._open}

    async def _open(self, plan: Plan, body: bytes, request: Request) -> Response:
        if request.upgrade != b"websocket" or request.method != "GET" or await request.has_body():
            path = plan.operation.path
            raise invalid(f"{path} is a WebSocket: connect with an HTTP/1.1 upgrade (Upgrade: websocket)")
        from gateway.http import websocket  # loads wsproto, which no other request needs
        from gateway.streams.websocket_commands import Conversation

        key = plan.key
        answer, connection = websocket.accept(request.path, request.headers)

        def audited(name: str, names: list[str], status: int, grave: bool) -> None:
            if self._outcomes.audit is not None:
                self._outcomes.audit.answered(self._operations[name], names, request, status, grave=grave)

        async def converse(channel: Channel) -> None:
            socket = websocket.WebSocket(connection, channel, key, self._live.limits, self._budget)
            if key is UNPROVEN and not await self._prove(socket, request):
                return
            await Conversation(self._live, self._live.shards, socket, audited).run()

        return Response(101, answer, upgraded=converse)

    async def _prove(self, socket: WebSocket, request: Request) -> bool:
        """Take the key from the first message of a socket; return whether it brought one. Otherwise, or after `AUTH_S`,
        close the socket."""
        from gateway.http.websocket import POLICY, TRY_LATER
        from gateway.streams.websocket_commands import failure, prove

        try:
            try:
                with trio.fail_after(AUTH_S):
                    message = await socket.first(MAX_AUTH_BYTES)
                key, answer = prove(message, self._live.keyring)
                assert request.slot is not None
                request.slot.release()
                request.slot = self._streams.take(key)
            except trio.TooSlowError:
                raise unauthorized(f"no key came within {AUTH_S:g} s") from None
        except TopicsError as error:
            if self._outcomes.audit is not None:
                self._outcomes.audit.answered(self._operations["websocket"], [], request, error.status)
            with contextlib.suppress(OSError, ClientGone), trio.move_on_after(AUTH_S):
                await socket.send(failure(error))
                again = error.code is ErrorCode.THROTTLED
                await socket.close(TRY_LATER if again else POLICY, error.code.value)
            return False
        except (OSError, ClientGone):
            return False
        request.key = key
        socket.belongs_to(key)
        with contextlib.suppress(OSError, ClientGone):
            await socket.send(answer)
            return True
        return False
