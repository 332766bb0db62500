"""Roll: replaces the gateways one by one, while clients are served. `topics roll` asks for it, with SIGUSR2.

    1  A spare gateway starts beside the others, and reaches all shards.
    2  Each gateway in turn retires (`proto.ipc.control.Retire`) and ends. Its successor reaches all shards. A gateway
       that does not serve is passed over: its next process is a new one anyway.
    3  The spare retires and ends.

The listening sockets stay open throughout, so no connection is refused. A gateway that retires serves the connections
that it has, and ends each after a response that says so.

    what happens meanwhile            then
    the spare is not ready in time    nothing was replaced; the spare ends
    a successor is not ready in time  the others stay as they are; the spare ends once another gateway serves. The
                                      service ends if neither can be started
    a gateway dies, or hangs          it is started again, as always; of the one that retires, this is its end
    the service is to stop            all gateways drain and stop at once, the spare too
    the supervisor dies               as always: all processes end
    another SIGUSR2                   all are replaced again afterwards
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import trio

from proto.ipc.control import Retire
from supervisor.process.child import Child
from supervisor.process.gateways import DRAIN_MARGIN_S, STOP_S, Gateways
from supervisor.process.states import ChildState

START_S = 60.0
"""Time in which a gateway must have reached all shards."""


@dataclass(eq=False)
class Roll:
    """`care` runs a child until it is gone; `refusal` says why the gateways cannot be replaced now, "" if they can;
    `ending` whether the service ends; `changed` is called when `told` has changed. A gateway has `retire_s`."""

    gateways: Gateways
    retire_s: float
    care: Callable[[Child], Awaitable[None]]
    refusal: Callable[[], str]
    ending: Callable[[], bool]
    changed: Callable[[], None]
    log: Any
    told: dict[str, Any] = field(default_factory=lambda: {"number": 0, "state": "done", "reason": ""})
    """The last one, for the status file: `rolling`, `done` or `failed`."""
    _wanted: trio.Event = field(default_factory=trio.Event)

    def want(self) -> None:
        self._wanted.set()

    async def run(self) -> None:
        """Replace the gateways each time that it is wanted, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            number, failure = self.told["number"] + 1, self.refusal()
            if not failure:
                self._tell("rolling", number)
                self.log.info("rolling_gateways")
                async with trio.open_nursery() as nursery:
                    spare = self.gateways.make_spare()
                    nursery.start_soon(self.care, spare)
                    failure = await self._replace_all(spare)
            self._tell("failed" if failure else "done", number, failure)
            if failure:
                self.log.error("gateways_not_rolled", reason=failure)
            else:
                self.log.info("gateways_rolled")

    def _tell(self, state: str, number: int, reason: str = "") -> None:
        self.told = {"number": number, "state": state, "reason": reason}
        self.changed()

    async def _replace_all(self, spare: Child) -> str:
        """Returns why not all were replaced, "" if they were. Returns early if the service ends, which stops all."""
        failure = await self._not_ready(spare)
        for child in self.gateways.lasting:
            if failure or self.ending():
                break
            if child.state is ChildState.SERVING:
                await child.replace(self.retire_s + DRAIN_MARGIN_S, STOP_S)
                failure = await self._not_ready(child)
        await self.gateways.until(lambda: self.ending() or any(each.living.complete for each in self.gateways.lasting))
        if self.ending():
            return "the service stops"
        await spare.drain(self.retire_s + DRAIN_MARGIN_S, Retire())
        await spare.stop(STOP_S)
        return failure

    async def _not_ready(self, child: Child) -> str:
        with trio.move_on_after(START_S):
            await self.gateways.until(lambda: child.living.complete or self.ending())
            return ""
        return f"{child.name} did not reach all shards within {START_S:g} s"
