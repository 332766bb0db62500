"""The plan of a request: what follows from its head and from the keys, before its body is read.

A plan is made once for requests with equal heads (`gateway.http.known_heads`). It holds as long as the keys and the
rule of origins under which it was made. It contains no secret.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gateway.contract.operations import Operation, QueryValue
from gateway.contract.origins import Rule
from gateway.http.messages import Request
from proto.ipc.operations import Operation as ShardOperation
from proto.model.keys import Key


@dataclass(slots=True)
class Plan:
    """`values` are the parameters of the path. The fields from `key` on are set by steps, each after its checks:
    `key`, `topic` and `options` once the key was found to be allowed, `asked` once the body was read."""

    operation: Operation
    values: list[str]
    rule: Rule
    keys: int
    """The keyring's version."""
    key: Key | None = None
    topic: str = ""
    options: dict[str, QueryValue] = field(default_factory=dict)
    packed: bool | None = None
    """Whether the body is compressed; None until its headers were checked."""
    asked: ShardOperation[Any] | None = None

    def holds(self, rule: Rule, keys: int) -> bool:
        return self.rule is rule and self.keys == keys


def remembered(request: Request, rule: Rule, keys: int) -> Plan | None:
    """Return the plan of an earlier request with an equal head, if it still holds."""
    plan: Plan | None = request.plan
    return plan if plan is not None and plan.holds(rule, keys) else None
