"""`topics roll`."""

from __future__ import annotations

import os
import signal
import time
from typing import Annotated

import typer

from supervisor.cli.own_settings import settings as own_settings
from supervisor.cli.terminal import DataDirOption, Status, complain, fail, tell
from supervisor.process import rundir

POLL_S = 0.1
WITHIN_S = 600.0


def roll(
    data_dir: DataDirOption = None,
    within: Annotated[float, typer.Option(metavar="SECONDS", help="How long to wait for it.")] = WITHIN_S,
) -> None:
    """Replace the gateways of the service that runs here, one by one, while it serves.

    A spare gateway serves beside them meanwhile, also where there is one gateway. No connection is refused or cut in a
    request. Each connection ends after a response that says so; streams end with a last event, as at a stop, and their
    clients come back. Settings and program are those that the service was started with. Exit status: 0 all gateways
    are new, 1 not possible, 2 wrong settings.
    """
    settings = own_settings(data_dir=data_dir)
    found = rundir.status(settings.runtime_dir, os.environ, settings.data_dir)
    descriptor = None if found is None else rundir.process(found)
    if found is None or descriptor is None:
        fail(f"no service runs here for {settings.data_dir}; run this with its settings, as its user", Status.FAILED)
    if "roll" not in found:
        fail("the service that runs here is of a release without this command", Status.FAILED)
    before, asked, until = found["roll"]["number"], found.get("pid"), time.monotonic() + within
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGUSR2)
    except ProcessLookupError:
        fail("the service has ended", Status.FAILED)
    while time.monotonic() < until:
        time.sleep(POLL_S)
        found = rundir.status(settings.runtime_dir, os.environ, settings.data_dir)
        if found is None or found.get("pid") != asked:  # one that was started since counts from 0
            fail("the service has ended", Status.FAILED)
        last = found["roll"]
        if last["number"] == before or last["state"] == "rolling":
            continue
        if last["state"] == "failed":
            fail(f"not all gateways were replaced: {last['reason']}", Status.FAILED)
        tell("all gateways are new")
        return
    complain(f"not done within {within:g} s; `topics status` and the service's log tell why")
    raise typer.Exit(Status.FAILED)
