"""The main program of the roster, a process that reads and writes the members of the service in the bucket.

It tells the supervisor which machines there are, and the supervisor tells the shards. It has no part in any request.
When it dies, the machines that are known stay known, and it is started again. Nothing of it is loaded without one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import trio

from proto.ipc.control import (
    CONTROL_FD_VARIABLE,
    EXIT_PERMANENT,
    Failed,
    Machine,
    Members,
    Ping,
    Pong,
    Ready,
    Start,
    Stop,
)
from proto.ipc.control_link import ControlLink
from proto.process.core_dumps import leave_no_core
from proto.process.log import configure
from proto.process.orphan import die_with_parent

if TYPE_CHECKING:
    from shardd.replication.members import Member
    from shardd.replication.membership import Membership


def _membership(start: Start, link: ControlLink) -> Membership:
    """Raises `StoreError`."""
    from shardd.clock import SystemClock
    from shardd.replication.members import Member, keys
    from shardd.replication.membership import Membership
    from shardd.replication.seal import open_bucket

    limits, cluster = start.limits, start.cluster
    assert cluster is not None
    store = open_bucket(limits.bucket, limits.bucket_key_file, limits.bucket_encrypt)
    endpoint = f"{cluster.at}:{cluster.listen.rpartition(':')[2]}"
    own = Member(cluster.member, cluster.machine, start.address, cluster.public, endpoint, 0)

    async def heard(members: Mapping[str, Member], numbers: Mapping[str, int]) -> None:
        at = {name: member.address for name, member in members.items()}
        known = [Machine(name, number, at.get(name, "")) for name, number in numbers.items()]
        await link.send(Members(keys(members), known))

    return Membership(store, own, start.created_ms, limits.term_ttl_ms / 1000, SystemClock().now_ms, heard)


async def _obey(link: ControlLink) -> None:
    """Answer the supervisor until it sends `Stop`. Ends the process if the supervisor is gone."""
    while (message := await link.receive()) is not None:
        if isinstance(message, Ping):
            await link.send(Pong())
        elif isinstance(message, Stop):
            return
    os._exit(1)


async def main(descriptor: int) -> int:
    """Keep the roster until the supervisor sends `Stop`. Returns the exit status."""
    link = ControlLink.inherited(descriptor)
    try:
        return await _keep(link)
    finally:
        await link.aclose()


async def _keep(link: ControlLink) -> int:
    from shardd.replication.store import StoreError

    start = await link.receive()
    if not isinstance(start, Start):
        return 1
    configure("roster")
    try:
        membership = _membership(start, link)
    except (StoreError, OSError) as error:
        await link.send(Failed(f"roster: {error}"))
        return EXIT_PERMANENT
    await link.send(Ready())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(membership.run)
        await _obey(link)
        nursery.cancel_scope.cancel()
    await membership.withdraw()
    return 0


def run() -> None:
    die_with_parent()
    leave_no_core()
    sys.exit(trio.run(main, int(os.environ[CONTROL_FD_VARIABLE])))
