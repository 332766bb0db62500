"""Readiness: what the service manager and the terminal hear of a start, and of what serves later.

the service starts         its progress, every two seconds
all that can serve serves  once, that it is ready; it names the shards and gateways that are in trouble
later                      which of them do not serve
another machine holds      once, that the service stands by: a service manager must not end it for not being ready
the shards
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from proto.ipc.control import HELD_ELSEWHERE
from supervisor.process.child import Child, now_ms
from supervisor.process.datadir import DataDir
from supervisor.process.gateways import Gateways
from supervisor.process.notify import Notifier
from supervisor.process.states import ChildState

PROGRESS_LOG_S = 2.0


@dataclass(eq=False)
class Readiness:
    shards: Sequence[Child]
    gateways: Gateways
    notifier: Notifier
    log: Any
    announce: Callable[[str], None]
    url: str
    data: DataDir
    takes_over: bool
    """Whether a standby takes over without an operator."""
    forwards: bool
    """Whether this machine passes requests on to the holders of other shards."""
    announced: bool = False
    stands_by: bool = False
    """Whether it was reported that another machine holds the shards."""
    served: bool = False
    """Whether a shard has ever served."""
    _began_ms: int = field(default_factory=now_ms)
    _logged_at: dict[str, float] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """Whether every shard serves, here or on a machine that this one reaches, and a gateway."""
        return all(map(self._serves, self.shards)) and self.gateways.serving

    def _serves(self, child: Child) -> bool:
        elsewhere = self.forwards and child.phase in {*HELD_ELSEWHERE, "open"} and child.holder_link[1] != ""
        return child.state is ChildState.SERVING or elsewhere

    def progress(self, child: Child, *, always: bool = False) -> None:
        """Report how far the start of a shard is."""
        now = trio.current_time()
        if not always and now - self._logged_at.setdefault(child.name, now) < PROGRESS_LOG_S:
            return
        self._logged_at[child.name] = now
        self.log.info(
            "boot_progress",
            child=child.name,
            phase=child.phase,
            done_bytes=child.done_bytes,
            total_bytes=child.total_bytes,
        )
        share = f" {100 * child.done_bytes // child.total_bytes} %" if child.total_bytes else ""
        self.notifier.busy(f"{child.name}: {child.phase}{share}", 60)

    def report(self) -> None:
        """Report what has changed."""
        self._report_standby()
        down = [child.name for child in (*self.shards, *self.gateways) if not self._serves(child)]
        without = f", without {', '.join(down)}" if down else ""
        if self.announced:
            serving = f"serving {self.url}{without}"
            self.notifier.status(serving if self.ready else "not ready: " + ", ".join(down))
        elif (
            (self.served or self.forwards)
            and self.gateways.complete
            and all(shard.decided or self._serves(shard) for shard in self.shards)
        ):
            # `complete` means that /v0/ready agrees: the gateway knows that the shards serve, and has reached them.
            # A shard that cannot start keeps /v0/ready at 503, but must not make systemd kill the service.
            self.announced = True
            self.notifier.ready(f"serving {self.url}{without}")
            self.log.info(
                "ready",
                url=self.url,
                shards=self.data.shards,
                data_dir=str(self.data.path),
                boot_ms=now_ms() - self._began_ms,
                **({"without": ",".join(down)} if down else {}),
            )
            self.announce(
                f"topics is ready at {self.url}{without} ({self.data.shards} shards, data in {self.data.path})"
            )

    def _report_standby(self) -> None:
        holder = self.shards[0].holder if self.shards[0].phase == "standby" and not self.forwards else ""
        if not holder:
            self.stands_by = False
        elif not self.stands_by:
            self.stands_by = True
            self.announced = False
            self.notifier.ready(f"standing by, {holder} holds the shards")
            self.log.info("standing_by", holder=holder)
            by_hand = "" if self.takes_over else "; `topics takeover` if that one is gone"
            self.announce(f"topics stands by at {self.url}: {holder} holds the shards{by_hand}")
