"""The giver: hands the open shard of this process over to another machine, in the steps that the roster orders.

    step        done when
    saving      a checkpoint of now is in the bucket; requests are served
    refusing    requests are refused as `moving`, and what was staged before is in the bucket and answered
    ending      the end of the term is in the bucket, and no process sends requests to this one any more; it is to end,
                and the next one follows the next holder

An order that names none takes back what was refused. A step is cancelled when the order changes, but for the last one:
the end may be there before its answer is. See `shardd.roster.handover`. A stop in order does the last step.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog
import trio
from structlog.typing import FilteringBoundLogger

from proto.ipc.control import Step, StepDone
from proto.model.errors import moving
from shardd.replication.role import Role
from shardd.replication.shipper import Holder
from shardd.replication.states import ReplicaState
from shardd.roster.handover import HandOverEvent, HandOverState
from shardd.shard import Shard

_log: FilteringBoundLogger = structlog.get_logger()


@dataclass(eq=False, repr=False)
class Giver:
    _shard: Shard
    _role: Role
    _holder: Holder
    _index: int
    _done: Callable[[StepDone], Awaitable[None]]
    """Called when a step is done."""
    _dismiss: Callable[[], Awaitable[None]]
    """Called after the last one. It returns when no process asks this process any more."""
    given: bool = False
    """Whether the term is being ended: this process serves the shard no more."""
    stopping: bool = False
    """Whether the process is to end for good."""
    _step: Step | None = None
    _changed: trio.Event = field(default_factory=trio.Event)

    def ordered(self, step: Step | None) -> None:
        """What the roster wants. A step of another term was for an earlier process."""
        replica = self._role.replica
        if step is not None and (replica is None or step.term != replica.term):
            step = None
        if step != self._step and not self.stopping:
            self._step = step
            self._changed.set()

    def stop(self) -> None:
        """End the term at once, whatever the roster wants: another machine claims the shard then."""
        term = 0 if self._role.replica is None else self._role.replica.term
        self.stopping = True
        self._step = Step(self._index, term, 0, HandOverState.ENDING)
        self._changed.set()

    async def run(self) -> None:
        """Do what is ordered. Returns when the shard is given away."""
        while True:
            self._changed = trio.Event()
            step = self._step
            state = None if step is None else HandOverState(step.state)
            refuses = state in (HandOverState.REFUSING, HandOverState.ENDING)
            if refuses != (self._shard.moving is not None):
                self._shard.move(moving(self._index) if refuses else None)
            if step is not None and state is HandOverState.ENDING:
                self.given = True
                await self._end(step)
                return
            async with trio.open_nursery() as nursery:
                if step is not None:
                    nursery.start_soon(self._do, step)
                await self._changed.wait()
                nursery.cancel_scope.cancel()

    async def _do(self, step: Step) -> None:
        if step.state == HandOverState.SAVING:
            control = self._shard.control
            if control.worth:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._holder.save)
                    control.wanted()
            await self._done(StepDone(step.move, HandOverEvent.SAVED))
        elif step.state == HandOverState.REFUSING and await self._synced():
            await self._holder.shipper.caught_up()
            await self._done(StepDone(step.move, HandOverEvent.SHIPPED))

    async def _synced(self) -> bool:
        """Sync all that was staged. Returns whether that is done."""
        try:
            await self._shard.commits.idle()
            self._shard.commits.sync_now()
        except OSError as error:
            _log.error("not_handed_over", reason=str(error))
            return False
        return True

    async def _end(self, step: Step) -> None:
        await self._synced()
        await self._holder.shipper.drain()
        replica = self._role.replica
        if replica is not None and replica.state is ReplicaState.DRAINED:
            _log.info("handed_over", term=replica.term, move=step.move)
            await self._done(StepDone(step.move, HandOverEvent.ENDED))
        await self._dismiss()
