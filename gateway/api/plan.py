"""The plan of a request: what follows from its head and from the keys, before its body is read.

A plan is made once for requests with equal heads (`gateway.http.known_heads`). It holds as long as the keys and the
rule of origins under which it was made. It contains no secret.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from gateway.contract.auth import UNPROVEN
from gateway.contract.operation import Operation, QueryValue
from gateway.contract.origins import Rule
from gateway.http.messages import Request, Response
from proto.ipc.message import Reply
from proto.ipc.operations import Operation as ShardOperation
from proto.model.keys import Key


@dataclass(slots=True)
class Plan:
    """Each step sets what it has checked:

    recognition    `operation`, `values` (the parameters of the path), `rule`, `keys` (the keyring's version)
    entry          `key`, `topic`, `options`, then `admitted`
    bodies         `packed`: whether the body is compressed, once its headers were checked
    forwarding     `asked`: what the shard is asked for
    """

    operation: Operation
    values: list[str]
    rule: Rule
    keys: int
    admitted: bool = False
    key: Key = UNPROVEN
    topic: str = ""
    options: dict[str, QueryValue] = field(default_factory=dict)
    packed: bool | None = None
    asked: ShardOperation[Any] | None = None


Handler = Callable[[Plan, bytes, Request], Awaitable[Reply[Any] | Response]]
"""Carries out an operation that no single shard does: from the plan, the body and the request."""
