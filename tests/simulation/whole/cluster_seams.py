"""Seams of several machines: what is replaced besides `seams` while a simulation of them runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from proto.ipc import remote_link
from proto.ipc.remote import KeyPair
from shardd.process import bucket, main, roster
from shardd.replication import browse, checkpoint_copies, checkpoint_files, membership, role, seal
from shardd.replication.outage import Outage
from shardd.standby import closed_log
from supervisor.process import cluster
from tests.simulation.whole.network import PROCESS
from tests.simulation.whole.processes import Process
from tests.simulation.whole.remote import Dialer, Listener
from tests.simulation.whole.seams import SimulatedClock, Slow, SyncThread, now, wall_ns
from tests.simulation.whole.threads import AtOnce, Patience, wait
from tests.support.fault_disk import Crash


@contextmanager
def several(rng: Random, store: Callable[[Process], Any]) -> Iterator[None]:
    """Inside, and inside `seams.replaced`, the product runs on several machines. `store` makes that of a process."""

    def exits(status: int) -> None:
        PROCESS.get().end(status)
        raise Crash

    secret = SimpleNamespace(token_hex=lambda size=32: rng.randbytes(size).hex())
    time_of_process = SimpleNamespace(
        clock_gettime=lambda clock: now(), CLOCK_BOOTTIME=time.CLOCK_BOOTTIME, time=lambda: wall_ns(PROCESS.get()) / 1e9
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SyncThread, "slow", Slow(rng))  # a sync asks no store
        patch.setattr(main, "os", SimpleNamespace(_exit=exits))
        patch.setattr(main, "RemoteRouter", Listener)
        patch.setattr(remote_link, "RemoteDealer", Dialer)
        patch.setattr(remote_link, "_numbers", count(1))
        patch.setattr(roster, "os", SimpleNamespace(_exit=exits))
        patch.setattr(roster, "configure", lambda name: None)
        patch.setattr(membership, "time", time_of_process)
        patch.setattr(role, "time", time_of_process)
        patch.setattr(browse, "time", SimpleNamespace(monotonic=now, sleep=wait))
        patch.setattr(Outage.__init__, "__defaults__", (now,))
        for module in (bucket, closed_log):
            patch.setattr(module, "SystemClock", SimulatedClock)
        patch.setattr(bucket, "RealDisk", lambda: PROCESS.get().disk)
        patch.setattr(bucket, "TermDisk", TermDisk)
        patch.setattr(bucket, "Claim", NoClaim)
        for module in (bucket, checkpoint_files, cluster):
            patch.setattr(module, "secrets", secret)
        patch.setattr(closed_log, "token_hex", secret.token_hex)
        patch.setattr(bucket, "socket", SimpleNamespace(gethostname=lambda: PROCESS.get().home.name))
        patch.setattr(closed_log, "ThreadPoolExecutor", AtOnce)
        patch.setattr(checkpoint_copies, "Event", Patience)
        patch.setattr(seal, "open_bucket", lambda *_: store(PROCESS.get()))
        patch.setattr(KeyPair, "new", classmethod(lambda cls: cls(secret.token_hex(20), "")))
        yield


class TermDisk:
    """In place of `shardd.process.bucket.TermDisk`."""

    def __init__(self, nonce: str) -> None:
        self._disk = PROCESS.get().disk
        self._nonce = nonce

    def boot_id(self) -> str:
        return self._nonce

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


class NoClaim:
    """In place of `shardd.storage.disk.Claim`: a shard has one process on each machine."""

    def __init__(self, path: Path) -> None:
        pass

    def close(self) -> None:
        pass
