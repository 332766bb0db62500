"""`topics takeover`."""

from __future__ import annotations

import os
import signal
import time
from typing import Annotated, Any

import typer

from supervisor.cli.own_settings import settings as own_settings
from supervisor.cli.terminal import DataDirOption, Status, complain, fail, tell
from supervisor.process import rundir

POLL_S = 0.1
WITHIN_S = 60.0


def takeover(
    data_dir: DataDirOption = None,
    within: Annotated[float, typer.Option(metavar="SECONDS", help="How long to wait for it.")] = WITHIN_S,
) -> None:
    """Have the standby that runs on this machine take over, whether or not the holder lives.

    With TOPICS_REPLICATION=sync, nothing acknowledged as `fsync` is lost: the holder that is replaced can acknowledge
    nothing more. With `async`, changes that it had not shipped are lost, and so are those that it acknowledges until
    it notices: stop it first, if it still runs. Of several machines at once, one takes over; the others say which.
    Exit status: 0 this machine holds the shards, 1 not possible, 2 wrong settings.
    """
    settings = own_settings(data_dir=data_dir)
    found = rundir.status(settings.runtime_dir, os.environ, settings.data_dir)
    if not settings.bucket and (found is None or not _holder(found)):
        fail(
            f"no standby runs here for {settings.data_dir}: run this with the service's settings (TOPICS_DATA_DIR, "
            "TOPICS_RUNTIME_DIR, TOPICS_BUCKET), as its user",
            Status.USAGE,
        )
    if found is not None and _holds(found):
        tell("this machine holds the shards already")
        return
    descriptor = None if found is None else rundir.process(found)
    if found is None or descriptor is None:
        fail(f"no service runs here for {settings.data_dir}; start it first, and run this as its user", Status.FAILED)
    signal.pidfd_send_signal(descriptor, signal.SIGUSR1)
    before, until = _holder(found), time.monotonic() + within
    claimed = False
    while time.monotonic() < until:
        time.sleep(POLL_S)
        found = rundir.status(settings.runtime_dir, os.environ, settings.data_dir)
        if found is None:
            continue  # it starts again
        if _holds(found):
            tell("this machine holds the shards now")
            return
        holder = _holder(found)
        claimed = claimed or not holder  # a machine that claims knows of no other holder
        if before and holder and (claimed or holder != before):
            complain(f"{holder} holds the shards: it has taken over since, and this machine is its standby")
            raise typer.Exit(Status.FAILED)
    complain(f"not taken over within {within:g} s; `topics status` and the service's log tell why")
    raise typer.Exit(Status.FAILED)


def _holds(found: dict[str, Any]) -> bool:
    """Whether all shards are this machine's: with other machines, it may be ready without."""
    shards = [child for name, child in found.get("children", {}).items() if name.startswith("shard-")]
    return bool(found.get("ready")) and all(child.get("phase", "ready") == "ready" for child in shards)


def _holder(found: dict[str, Any]) -> str:
    """The other machine that holds shard 0; "" if this one does, claims it, or knows of none."""
    return str(found.get("children", {}).get("shard-00", {}).get("holder", ""))
