"""Broken products: edits of the product's source, as those of `tests.mutants`, made in this process and undone."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

from tests.mutants.catalogue import MUTANTS, Edit

_KNOWN = {mutant.name: mutant.edits for mutant in MUTANTS}
BROKEN: dict[str, tuple[Edit, ...]] = {
    name: _KNOWN[name]
    for name in (
        "a write is answered before its sync",
        "an ack needs no lease",
        "a deletion takes one record more",
        "a tombstone is one seq short",
        "a failed sync is taken for a good one",
        "a request whose outcome is unknown is sent to the next holder",
    )
} | {
    "idempotency keys are forgotten at a restart": (
        Edit("shardd/recovery/replay.py", "    elif columns.key:\n", "    elif False:\n"),
        Edit("shardd/topic/idempotency.py", "key, first, count, ts in entries}", "key, first, count, ts in ()}"),
    ),
    "a dead letter is taken for arrived though its target did not answer": (
        Edit(
            "shardd/queues/transfers.py",
            "            self._refused(topic, target, refused, error, sum(map(size_of, found)))\n",
            "            self._remove(topic, target, seqs, 1)\n",
        ),
    ),
    "a target forgets at a restart which letters have arrived": (
        Edit("shardd/recovery/replay.py", "        topic.arrivals.add(columns.key)\n", "        pass\n"),
    ),
    "copies are not made again after a stop": (
        Edit("shardd/process/router_tasks.py", "restores = self._shard.restoring.restores()\n", "restores = []\n"),
    ),
}

_PROTOCOL = "shardd/replication/protocol.py"
BROKEN_MACHINES: dict[str, tuple[Edit, ...]] = {
    name: _KNOWN[name]
    for name in (
        "a machine answers although its term was not renewed",
        "a change is acknowledged before the bucket has it",
    )
} | {
    "a forwarded request whose outcome is unknown is sent to the next holder": _KNOWN[
        "a request whose outcome is unknown is sent to the next holder"
    ],
    "a holder that was replaced goes on answering, and takes the fence for its own part": (
        *_KNOWN["a machine answers although its term was not renewed"],
        Edit(
            _PROTOCOL,
            "        elif self._ours(part.term, part.nonce):\n",
            "        elif self.state in HOLDERS or self._ours(part.term, part.nonce):\n",
        ),
    ),
    "a part whose creation got no clear answer is taken for created": (
        Edit(
            _PROTOCOL,
            "        if answer is Result.UNKNOWN:\n            self._doubt = self._doubt",
            "        if answer is Result.UNKNOWN and isinstance(request, CreatePart):\n"
            "            return self._created()\n"
            "        if answer is Result.UNKNOWN:\n            self._doubt = self._doubt",
        ),
    ),
    "a holder that renews its term looks for no later one": (
        Edit(
            _PROTOCOL,
            "            self._life = Look()\n            return [self._life]\n",
            "            self._answers_until = self._renewed_at + self._timing.silence\n"
            "            self._life_at = self._renewed_at + self._timing.renewal\n",
        ),
    ),
    "a log is not compared with the bucket's": (
        Edit(
            "shardd/standby/closed_log.py",
            " or self._differs_at(part, frames) is not None:\n            self._differed = True\n",
            ":\n            self._differed = True\n",
        ),
    ),
    "what a machine may not answer is taken for not done": (
        Edit(
            "shardd/process/server.py",
            'not_renewed("unknown")',
            'not_renewed("not_done")',
        ),
    ),
}
"""Errors that only several machines show. One that another rule makes harmless shows in no history, as a fence that
retention removes while its holder is silent: `tests.simulation.test_machines` and `test_replication` have those."""
BROKEN_MOVES: dict[str, tuple[Edit, ...]] = {
    "a shard that is given away refuses no requests": (
        Edit(
            "shardd/process/giver.py",
            "refuses = state in (HandOverState.REFUSING, HandOverState.ENDING)\n",
            "refuses = False\n",
        ),
    ),
}
"""Those that cost requests while a shard moves, and break no other promise."""

RARE = (
    "a failed sync is taken for a good one",
    "a target forgets at a restart which letters have arrived",
    "a dead letter is taken for arrived though its target did not answer",
    "a machine answers although its term was not renewed",
    "a log is not compared with the bucket's",
    "a holder that renews its term looks for no later one",
)
"""Those that few schedules notice, of which thousands may be needed, or tens of several machines; the last one makes
its schedules long."""


@contextmanager
def broken(name: str) -> Iterator[None]:
    """Inside, the product has these errors."""
    before: list[tuple[FunctionType, CodeType]] = []
    try:
        for edit in (BROKEN | BROKEN_MACHINES | BROKEN_MOVES)[name]:
            before += _apply(edit)
        yield
    finally:
        for function, code in reversed(before):
            function.__code__ = code


def _apply(edit: Edit) -> list[tuple[FunctionType, CodeType]]:
    """Give the functions that an edit changes their new code. Returns them with their old code."""
    module = importlib.import_module(edit.path.removesuffix(".py").replace("/", "."))
    source = inspect.getsource(module)
    was, now = (_codes(compile(text, str(module.__file__), "exec", 0, True)) for text in (source, edit.applied(source)))
    changed = []
    for function in _functions(module, module.__name__):
        name = function.__code__.co_qualname
        if name in now and was[name] != now[name]:
            changed.append((function, function.__code__))
            function.__code__ = now[name]
    assert changed, f"{edit.path} has no function that the edit changes"
    return changed


def _codes(code: CodeType) -> dict[str, CodeType]:
    found = {}
    for each in code.co_consts:
        if isinstance(each, CodeType):
            found[each.co_qualname] = each
            found |= _codes(each)
    return found


def _functions(of: Any, module: str) -> Iterator[FunctionType]:
    for each in vars(of).values():
        plain = each.fget if isinstance(each, property) else getattr(each, "__func__", each)
        if isinstance(plain, FunctionType) and plain.__module__ == module:
            yield plain
        elif isinstance(plain, type) and plain.__module__ == module:
            yield from _functions(plain, module)
