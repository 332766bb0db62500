"""Readiness: what the service manager and the terminal hear of a start, and of what serves later.

the service starts         its progress, every two seconds
all that can serve serves  once, that it is ready; it names the shards and gateways that are in trouble
later                      which of them do not serve
another machine holds      once, that the service stands by: a service manager must not end it for not being ready
the shards
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import trio

from proto.ipc.control import HELD_ELSEWHERE
from supervisor.process.child import Child, now_ms
from supervisor.process.datadir import DataDir
from supervisor.process.gateways import Gateways
from supervisor.process.notify import Notifier
from supervisor.process.states import ChildState

PROGRESS_LOG_S = 2.0


class Readiness:
    def __init__(
        self,
        shards: Sequence[Child],
        gateways: Gateways,
        notifier: Notifier,
        log: Any,
        announce: Callable[[str], None],
        url: str,
        data: DataDir,
        takes_over: bool,
        forwards: bool = False,
    ) -> None:
        """`takes_over`: a standby takes over without an operator. `forwards`: this machine passes requests on to the
        holders of other shards."""
        self.announced = False
        self.stands_by = False
        """Whether it was reported that another machine holds the shards."""
        self.served = False
        """Whether a shard has ever served."""
        self._shards = shards
        self._gateways = gateways
        self._notifier = notifier
        self._log = log
        self._announce = announce
        self._url = url
        self._data = data
        self._takes_over = takes_over
        self._forwards = forwards
        self._began_ms = now_ms()
        self._logged_at: dict[str, float] = {}

    @property
    def ready(self) -> bool:
        """Whether every shard serves, here or on a machine that this one reaches, and a gateway."""
        return all(map(self._serves, self._shards)) and self._gateways.serving

    def _serves(self, child: Child) -> bool:
        elsewhere = self._forwards and child.phase in {*HELD_ELSEWHERE, "open"} and child.holder_link[1] != ""
        return child.state is ChildState.SERVING or elsewhere

    def progress(self, child: Child, *, always: bool = False) -> None:
        """Report how far the start of a shard is."""
        now = trio.current_time()
        if not always and now - self._logged_at.setdefault(child.name, now) < PROGRESS_LOG_S:
            return
        self._logged_at[child.name] = now
        self._log.info(
            "boot_progress",
            child=child.name,
            phase=child.phase,
            done_bytes=child.done_bytes,
            total_bytes=child.total_bytes,
        )
        share = f" {100 * child.done_bytes // child.total_bytes} %" if child.total_bytes else ""
        self._notifier.busy(f"{child.name}: {child.phase}{share}", 60)

    def report(self) -> None:
        """Report what has changed."""
        self._report_standby()
        down = [child.name for child in (*self._shards, *self._gateways) if not self._serves(child)]
        without = f", without {', '.join(down)}" if down else ""
        if self.announced:
            serving = f"serving {self._url}{without}"
            self._notifier.status(serving if self.ready else "not ready: " + ", ".join(down))
        elif (
            (self.served or self._forwards)
            and self._gateways.complete
            and all(shard.decided or self._serves(shard) for shard in self._shards)
        ):
            # `complete` means that /v0/ready agrees: the gateway knows that the shards serve, and has reached them.
            # A shard that cannot start keeps /v0/ready at 503, but must not make systemd kill the service.
            self.announced = True
            self._notifier.ready(f"serving {self._url}{without}")
            self._log.info(
                "ready",
                url=self._url,
                shards=self._data.shards,
                data_dir=str(self._data.path),
                boot_ms=now_ms() - self._began_ms,
                **({"without": ",".join(down)} if down else {}),
            )
            self._announce(
                f"topics is ready at {self._url}{without} ({self._data.shards} shards, data in {self._data.path})"
            )

    def _report_standby(self) -> None:
        holder = self._shards[0].holder if self._shards[0].phase == "standby" and not self._forwards else ""
        if not holder:
            self.stands_by = False
        elif not self.stands_by:
            self.stands_by = True
            self.announced = False
            self._notifier.ready(f"standing by, {holder} holds the shards")
            self._log.info("standing_by", holder=holder)
            by_hand = "" if self._takes_over else "; `topics takeover` if that one is gone"
            self._announce(f"topics stands by at {self._url}: {holder} holds the shards{by_hand}")
