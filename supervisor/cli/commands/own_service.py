"""`topics roll`, `leave` and `takeover`: each signals the service that runs here, and waits for the effect."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from supervisor.cli.own_settings import settings as own_settings
from supervisor.cli.terminal import DataDirOption, Status, fail, tell
from supervisor.config.settings import Settings
from supervisor.process import rundir

POLL_S = 0.1
TAKEOVER_S = 60.0
WITHIN_S = 600.0
WithinOption = Annotated[float, typer.Option(metavar="SECONDS", help="How long to wait for it.")]


def roll(data_dir: DataDirOption = None, within: WithinOption = WITHIN_S) -> None:
    """Replace the gateways of the service that runs here, one by one, while it serves.

    A spare gateway serves beside them meanwhile, also where there is one gateway. No connection is refused or cut in a
    request. Each connection ends after a response that says so; streams end with a last event, as at a stop, and their
    clients come back. Settings and program are those that the service was started with. Exit status: 0 all gateways
    are new, 1 not possible, 2 wrong settings.
    """
    settings = own_settings(data_dir=data_dir)
    found, process = _running(settings, _status(settings))
    if "roll" not in found:
        fail("the service that runs here is of a release without this command", Status.FAILED)
    for now in _after(signal.SIGUSR2, process, settings, within):
        if now is None or now.get("pid") != found.get("pid"):  # one that was started since counts from 0
            fail("the service has ended", Status.FAILED)
        last = now["roll"]
        if last["number"] == found["roll"]["number"] or last["state"] == "rolling":
            continue
        if last["state"] == "failed":
            fail(f"not all gateways were replaced: {last['reason']}", Status.FAILED)
        tell("all gateways are new")
        return
    fail(f"not done within {within:g} s; `topics status` and the service's log tell why", Status.FAILED)


def leave(data_dir: DataDirOption = None, within: WithinOption = WITHIN_S) -> None:
    """Have other machines take the shards of the service that runs here, one by one, and end it then.

    Requests wait while their shard moves. For services of several machines (TOPICS_CLUSTER_LISTEN). Without another
    machine that can take the shards, the service continues; a restart takes the wish to leave back. Exit status: 0 the
    service has left and ended, 1 not possible, 2 wrong settings.
    """
    settings = own_settings(data_dir=data_dir)
    found, process = _running(settings, _status(settings))
    if "leaving" not in found:
        fail("the service that runs here has no other machines (TOPICS_CLUSTER_LISTEN); stop it", Status.FAILED)
    left = 0
    for now in _after(signal.SIGRTMIN, process, settings, within):
        if now is None or now.get("pid") != found.get("pid"):
            tell("this machine has left")
            return
        left = sum(child.get("phase") == "ready" for name, child in now["children"].items() if "shard" in name)
    fail(
        f"not done within {within:g} s: {left} shards are still here; the service's log tells why, and continues",
        Status.FAILED,
    )


def takeover(data_dir: DataDirOption = None, within: WithinOption = TAKEOVER_S) -> None:
    """Have the standby that runs on this machine take over, whether or not the holder lives.

    With TOPICS_REPLICATION=sync, nothing acknowledged as `fsync` is lost: the holder that is replaced can acknowledge
    nothing more. With `async`, changes that it had not shipped are lost, and so are those that it acknowledges until
    it notices: stop it first, if it still runs. Of several machines at once, one takes over; the others say which.
    Exit status: 0 this machine holds the shards, 1 not possible, 2 wrong settings.
    """
    settings = own_settings(data_dir=data_dir)
    found = _status(settings)
    if not settings.bucket and (found is None or not _holder(found)):
        fail(
            f"no standby runs here for {settings.data_dir}: run this with the service's settings (TOPICS_DATA_DIR, "
            "TOPICS_RUNTIME_DIR, TOPICS_BUCKET), as its user",
            Status.USAGE,
        )
    if found is not None and _holds(found):
        tell("this machine holds the shards already")
        return
    found, process = _running(settings, found, "start it first, and run this as its user")
    before = _holder(found)
    claimed = False
    for now in _after(signal.SIGUSR1, process, settings, within):
        if now is None:
            continue  # it starts again
        if _holds(now):
            tell("this machine holds the shards now")
            return
        holder = _holder(now)
        claimed = claimed or not holder  # a machine that claims knows of no other holder
        if before and holder and (claimed or holder != before):
            fail(f"{holder} holds the shards: it has taken over since, and this machine is its standby", Status.FAILED)
    fail(f"not taken over within {within:g} s; `topics status` and the service's log tell why", Status.FAILED)


def _status(settings: Settings) -> dict[str, Any] | None:
    return rundir.status(settings.runtime_dir, os.environ, settings.data_dir)


def _running(
    settings: Settings, found: dict[str, Any] | None, remedy: str = "run this with its settings, as its user"
) -> tuple[dict[str, Any], int]:
    """The status of the service that runs here, and a pidfd of it. Ends the command if none does."""
    process = None if found is None else rundir.process(found)
    if found is None or process is None:
        fail(f"no service runs here for {settings.data_dir}; {remedy}", Status.FAILED)
    return found, process


def _after(number: int, process: int, settings: Settings, within: float) -> Iterator[dict[str, Any] | None]:
    """Send a signal, and look at the status again and again. Ends the command if the service has ended before."""
    until = time.monotonic() + within
    try:
        signal.pidfd_send_signal(process, number)
    except ProcessLookupError:
        fail("the service has ended", Status.FAILED)
    while time.monotonic() < until:
        time.sleep(POLL_S)
        yield _status(settings)


def _holds(found: dict[str, Any]) -> bool:
    """Whether all shards are this machine's: with other machines, it may be ready without."""
    shards = [child for name, child in found.get("children", {}).items() if name.startswith("shard-")]
    return bool(found.get("ready")) and all(child.get("phase", "ready") == "ready" for child in shards)


def _holder(found: dict[str, Any]) -> str:
    """The other machine that holds shard 0; "" if this one does, claims it, or knows of none."""
    return str(found.get("children", {}).get("shard-00", {}).get("holder", ""))
