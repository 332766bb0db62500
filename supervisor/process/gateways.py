"""The gateways of a service: their first messages, their keys, and their end.

All gateways accept connections from the same listening sockets, which the supervisor holds. None of them is vital while
there are several: one that dies is started again, and the others take the connections meanwhile. The service ends if
none can be started. A single gateway is vital, except while a spare serves beside it.

Several gateways share a page (`proto.ipc.gateway_page`). The supervisor makes it before the first of them starts, and
clears the row of each that has died.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import trio
from msgspec.structs import replace

from proto.ipc import askers
from proto.ipc.control import (
    AuditLog,
    Control,
    FiguresWanted,
    Keys,
    KeysTaken,
    OtherFigures,
    Pong,
    Start,
    Suspected,
)
from proto.ipc.gateway_figures import Accounts
from proto.ipc.gateway_page import Page
from proto.model.keys import Key
from supervisor.process.audit_file import AuditFile
from supervisor.process.child import Child
from supervisor.process.launch import Launch
from supervisor.process.states import FINAL, ChildState

DRAIN_MARGIN_S = 2.0
STOP_S = 5.0
SPARE_NAME = "gateway-spare"
CONFIRM_S = 30.0
"""How long a reload waits for a gateway that does not confirm its keys and is not killed."""


class MakeChild(Protocol):
    def __call__(self, name: str, prepare: Callable[[int], Launch], *, vital: Callable[[], bool]) -> Child: ...


class Gateways:
    """`first` makes the part of the first message that all gateways have in common, `inherit` are their descriptors.
    `make` makes a child, which calls `changed` and `heard`."""

    def __init__(
        self,
        number: int,
        make: MakeChild,
        first: Callable[[], Start],
        inherit: Sequence[int],
        audit: AuditFile | None,
        keys: Sequence[Key] | None,
        log: Any,
    ) -> None:
        self.page = Page(number + 1) if number > 1 else None
        self._first = first
        self._inherit = tuple(inherit)
        self._audit = audit
        self._log = log
        self._keys = keys
        self._reloads = 0
        self._confirmed: dict[str, int] = {}
        """The last reload that each gateway has confirmed, by name."""
        self._accounts = Accounts()
        self._asked: dict[str, FiguresWanted] = {}
        """The question that each gateway waits for an answer to, by name."""
        self._suspected: dict[str, list[Suspected]] = {}
        """What each gateway has not been told yet, by name."""
        self._news = trio.Event()
        """Set, and replaced, at every change of a gateway, and when one asks or confirms something."""
        self._make = make
        self._spare: Child | None = None
        """The last one that was made."""
        names = ["gateway"] if number == 1 else [f"gateway-{index}" for index in range(number)]
        self.lasting = [make(name, partial(self._launch, index), vital=self._alone) for index, name in enumerate(names)]
        """All but the spare."""

    def __iter__(self) -> Iterator[Child]:
        """All of them, and the spare while there is one."""
        yield from self.lasting
        if self._spare is not None and self._spare.state not in FINAL:
            yield self._spare

    def __contains__(self, child: object) -> bool:
        return child is self._spare or child in self.lasting

    def make_spare(self) -> Child:
        """A gateway beside the others. Its incarnations continue those of the spares before."""
        spare = self._make(SPARE_NAME, partial(self._launch, len(self.lasting)), vital=self._alone)
        if self._spare is not None:
            spare.incarnation = self._spare.incarnation
            spare.first_living = self._spare.first_living
        self._spare = spare
        return spare

    def _launch(self, index: int, incarnation: int) -> Launch:
        audit = () if self._audit is None else (self._audit.descriptor, self._audit.theirs[index].fileno())
        page = () if self.page is None else (self.page.descriptor,)
        return Launch(partial(self._start, index, incarnation), (*self._inherit, *audit, *page))

    def _start(self, index: int, incarnation: int) -> Start:
        return replace(
            self._first(),
            index=index,
            incarnation=incarnation,
            gateways=len(self.lasting),
            others_serve=any(child.living.complete for child in self),
            keys=None if self._keys is None else list(self._keys),
            places=self._places(),
            page_fd=-1 if self.page is None else self.page.descriptor,
            audit_fd=-1 if self._audit is None else self._audit.descriptor,
            audit_fds=-1 if self._audit is None else self._audit.theirs[index].fileno(),
        )

    def _places(self) -> list[int]:
        return [] if self.page is None else self.page.places(key.digest for key in self._keys or ())

    # -- what is known of them

    def _alone(self) -> bool:
        """Whether there is one gateway, and no spare."""
        return len([*self]) == 1

    def askers(self) -> dict[str, int]:
        """As `proto.ipc.control.Askers`, of the gateways."""
        living = {askers.gateway(index): child.first_living for index, child in enumerate(self.lasting)}
        return living if self._spare is None else {**living, askers.SPARE: self._spare.first_living}

    @property
    def complete(self) -> bool:
        """Whether readiness need not wait for them: one has reached all shards, and so have the others that can."""
        return any(child.living.complete for child in self.lasting) and all(
            child.living.complete or child.troubled for child in self.lasting
        )

    @property
    def serving(self) -> bool:
        return any(child.state is ChildState.SERVING for child in self)

    def changed(self, child: Child) -> None:
        """A gateway has changed. Of one without a process, nothing counts any more."""
        if child.pid is None:
            self._accounts.died(child.name)
            self._asked.pop(child.name, None)
            self._suspected.pop(child.name, None)
            if self.page is not None:
                self.page.clear(len(self.lasting) if child is self._spare else self.lasting.index(child))
        self.renew()

    def heard(self, child: Child, message: Control) -> None:
        """A gateway has sent a message that concerns the gateways."""
        match message:
            case KeysTaken():
                self._confirmed[child.name] = message.number
                self.renew()
            case Pong():
                if message.figures is not None:
                    self._accounts.report(child.name, message.figures)
            case FiguresWanted():
                self._accounts.report(child.name, message.figures)
                self._accounts.answered(message.shards)
                earlier = self._asked.get(child.name, message)
                self._asked[child.name] = replace(message, missing=[*{*earlier.missing, *message.missing}])
                self.renew()
            case Suspected():
                for other in self:
                    if other is not child and other.pid is not None:
                        self._suspected.setdefault(other.name, []).append(message)
                self.renew()

    def renew(self) -> None:
        """Have those that wait for a change look again."""
        self._news.set()
        self._news = trio.Event()

    # -- messages to them

    async def use(self, keys: Sequence[Key]) -> None:
        """Replace the keys. Returns when each gateway has confirmed that it uses them, or is gone: its successor starts
        with them."""
        self._keys = keys
        self._reloads += 1
        message = Keys(list(keys), self._places(), self._reloads)
        async with trio.open_nursery() as nursery:
            for child in self:
                if child.pid is not None:  # otherwise they stand in its first message
                    nursery.start_soon(self._confirm, child, child.incarnation, message)

    async def _confirm(self, child: Child, incarnation: int, message: Keys) -> None:
        await child.tell(message)  # without a deadline: half a message would be the child's end
        with trio.move_on_after(CONFIRM_S):
            while child.pid is not None and child.incarnation == incarnation:
                if self._confirmed.get(child.name, 0) >= message.number:
                    return
                await self._news.wait()
            return
        self._log.error("keys_not_confirmed", child=child.name, waited_s=CONFIRM_S)

    async def answer(self, child: Child) -> None:
        """Answer the questions of a gateway for the figures of the others, and pass on what they suspect, until
        cancelled. Of several questions at once, the last one is answered."""
        while True:
            for suspected in self._suspected.pop(child.name, ()):
                await child.tell(suspected)
            if (asked := self._asked.pop(child.name, None)) is not None:
                deaths = sum(each.deaths for each in self.lasting)
                others, known = self._accounts.others(child.name, deaths), self._accounts.shards
                shards = {index: known[index] for index in asked.missing if index in known}
                await child.tell(OtherFigures(asked.number, others, shards, self._accounts.counted()))
            elif child.name not in self._suspected:
                await self._news.wait()

    async def reopen_audit_log(self) -> None:
        """Have them write to the audit log that was opened again."""
        for child in self:
            await child.tell(AuditLog())

    async def stop(self, drain_s: float) -> None:
        """Drain and stop all at once. Returns when their processes are gone."""
        async with trio.open_nursery() as nursery:
            for child in self:
                nursery.start_soon(self._stop, child, drain_s)

    async def _stop(self, child: Child, drain_s: float) -> None:
        serves = child.state in (ChildState.SERVING, ChildState.LEAVING)
        if serves and not await child.drain(drain_s + DRAIN_MARGIN_S):
            self._log.error("drain_timed_out", child=child.name, deadline_s=drain_s)
        await child.stop(STOP_S)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once the condition, which is about the gateways, holds."""
        while not condition():
            await self._news.wait()

    def close(self) -> None:
        if self.page is not None:
            self.page.close()
