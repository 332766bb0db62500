"""Claims about a request's way through the gateway: five steps, in order, and few ways back."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import gateway
from gateway.api.plan import Plan
from gateway.http.messages import Request, Response
from proto.ipc.message import Reply
from tests.support.gateway_stage import key, stage

ROOT = Path(gateway.__file__).parent
STEPS = ["recognition", "entry", "bodies", "forwarding", "rendering"]
MOST_RETURNS = 8
"""To modules that the request had left before. The list of steps itself, `Api.handle`, counts once."""
VALUES = (Request, Plan, Reply, Response)
REQUESTS = {
    "append": ("POST", "/v0/topics/a", b'{"records":[{"data":1}]}'),
    "diff": ("POST", "/v0/topics/a/diff", b'{"limit":7}'),
    "state": ("GET", "/v0/topics/a", None),
    "health": ("GET", "/v0/health", None),
}


class Way:
    """The modules of the gateway that a connection's request passes, as a profile function sees them: those with a
    function that is given the request, its plan, its body, the reply or the response. What these values do themselves,
    in their methods, is no visit."""

    def __init__(self, body: bytes | None) -> None:
        self.modules: list[str] = []
        self._body = body
        self._frames: dict[int, FrameType] = {}

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or id(frame) in self._frames or not self._visits(frame):
            return
        self._frames[id(frame)] = frame  # kept, so that no other frame gets its id
        callers = [each for each in _callers(frame) if self._visits(each)]
        if any(each.f_code.co_qualname == "Connection._serve" for each in (frame, *callers)):
            for each in (callers[0], frame) if callers else (frame,):
                self._put(_module(each))

    def _put(self, module: str) -> None:
        if self.modules[-1:] != [module]:
            self.modules.append(module)

    def _visits(self, frame: FrameType) -> bool:
        if not frame.f_code.co_filename.startswith(str(ROOT)):
            return False
        if frame.f_code.co_qualname == "Connection._serve":
            return True
        names = frame.f_code.co_varnames[: frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount]
        given: list[Any] = [frame.f_locals.get(name) for name in names]
        if names[:1] == ("self",) and isinstance(given[0], VALUES):
            return False
        return any(isinstance(each, VALUES) or (bool(self._body) and each == self._body) for each in given)

    def returns(self) -> list[str]:
        """The modules that the request comes back to, in order."""
        ways = [each for at, each in enumerate(self.modules) if each != "api.dispatch" or at < 2]
        return [each for at, each in enumerate(ways) if each in ways[:at]]


def _callers(frame: FrameType) -> Iterator[FrameType]:
    while frame.f_back is not None:
        frame = frame.f_back
        yield frame


def _module(frame: FrameType) -> str:
    return ".".join(Path(frame.f_code.co_filename).relative_to(ROOT).with_suffix("").parts)


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_request_takes_the_steps_in_order_and_each_once(name: str) -> None:
    method, target, body = REQUESTS[name]
    async with stage(keys=[key("one")]) as there, there.client() as client:
        for _ in ("with a new head", "with a known head"):
            way = Way(body)
            sys.setprofile(way)
            answer = await client.ask(method, target, body, {"Authorization": "Bearer one"})
            sys.setprofile(None)
            assert answer.status == 200
            steps = [each for each in STEPS if each != "bodies" or body is not None]
            after_list = [
                now
                for before, now in zip(way.modules, way.modules[1:], strict=False)
                if before == "api.dispatch" and now.removeprefix("api.") in STEPS
            ]
            assert after_list == [f"api.{each}" for each in steps]
            assert len(way.returns()) <= MOST_RETURNS, way.modules


def test_a_way_back_is_counted() -> None:
    way = Way(None)
    way.modules = ["server.connection", "api.dispatch", "api.entry", "api.dispatch", "api.bodies", "api.entry"]
    assert way.returns() == ["api.entry"]
