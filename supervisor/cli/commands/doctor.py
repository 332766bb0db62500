"""`topics doctor`: what often goes wrong on a machine, checked one after the other.

A check yields findings: `ok`, `warn` (worth a look) or `fail` (the service cannot run, or not run well).
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from importlib.metadata import distributions
from itertools import chain
from pathlib import Path
from typing import Literal

import typer
from msgspec.structs import replace

from supervisor.cli.commands.version import installed
from supervisor.cli.endpoint import TOKEN_REMEDY, ContextOption, Endpoint, TokenOption, UrlOption, configured, resolve
from supervisor.cli.quantities import size
from supervisor.cli.terminal import DataDirOption, JsonOption, Status, joined, paint, say, tell
from supervisor.client.http_client import Client, ClientError
from supervisor.config.settings import Settings, inspect

PACKAGES = ("proto", "supervisor", "gateway", "shardd", "topics_server")
DISTRIBUTION = "topics-server"
REMEDY = "install topics-server into an environment of its own: pipx install, or uv tool install"
DESCRIPTORS = 4096
"""Fewer open files than this limit connections before anything else does."""
SKEW_S = 2.0
TIMEOUT_S = 3.0
NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "ceph")
CheckState = Literal["ok", "warn", "fail"]
_COLORS = {"ok": "green", "warn": "yellow", "fail": "red"}


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    state: CheckState
    text: str


def _fine(check: str, fine: bool, ok: str, warn: str) -> Finding:
    return Finding(check, "ok" if fine else "warn", ok if fine else warn)


@dataclass(frozen=True, slots=True)
class Machine:
    """What the checks look at."""

    settings: Settings
    endpoint: Endpoint


def doctor(
    data_dir: DataDirOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
    context: ContextOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check this machine and the service for what often goes wrong.

    Packages, settings, port, data directory, disk, descriptors, the service with its version, token and clock. Exit
    status: 0 nothing is wrong, warnings included, 1 something is, 2 wrong options.
    """
    loaded = inspect()
    settings = loaded.settings if data_dir is None else replace(loaded.settings, data_dir=data_dir)
    found = [Finding("settings", "fail", problem) for problem in loaded.problems]
    if not found:  # the other checks need settings
        machine = Machine(settings, resolve(url, token, context))
        found = [Finding("settings", "ok", "are valid"), *chain.from_iterable(check(machine) for check in CHECKS)]
    for each in found:
        if as_json:
            say(asdict(each))
        else:
            tell(joined(paint(each.state.ljust(4), _COLORS[each.state]), f"{each.check}: {each.text}"))
    if any(each.state == "fail" for each in found):
        raise typer.Exit(Status.FAILED)


def packages(machine: Machine) -> Iterator[Finding]:
    """`topics` refuses to run while another package hides one of its own. Which one would, if it came first?"""
    others: dict[str, str] = {}
    for each in distributions():
        name = str(each.metadata["Name"])
        tops = {file.parts[0] for file in each.files or ()} & set(PACKAGES) if name != DISTRIBUTION else set()
        others |= dict.fromkeys(tops, name)
    for package, name in sorted(others.items()):
        yield Finding(
            "packages", "fail", f"{name} has a package {package}, too, and each would hide the other's; {REMEDY}"
        )
    if not others:
        version = ".".join(map(str, sys.version_info[:3]))
        yield Finding("packages", "ok", f"topics {installed()} on Python {version}, and no other package hides its own")


def port(machine: Machine) -> Iterator[Finding]:
    host, number = machine.settings.host, machine.settings.port
    place = f"{host}:{number}"
    if machine.endpoint.local is not None:
        yield Finding("port", "ok", f"the service of this data directory listens at {machine.endpoint.url}")
        return
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host.strip("[]"), number))
        except OSError as error:
            yield _taken(machine, place, error)
            return
    yield Finding("port", "ok", f"{place} is free")


def _taken(machine: Machine, place: str, error: OSError) -> Finding:
    """The user of the port: a service that answers there, which is no fault, or another program."""
    url = configured(machine.settings)
    if error.errno == errno.EADDRINUSE:
        try:
            with Client(url, timeout_s=TIMEOUT_S) as client:
                health = client.get("/v0/health").json()
            if health["status"] == "ok" and isinstance(health["version"], str):
                return Finding("port", "ok", f"a service of topics listens at {url}")
        except (ClientError, ValueError, LookupError, TypeError):
            pass
    return Finding("port", "fail", f"{place} cannot be used ({error.strerror}); stop what has it, or set TOPICS_PORT")


def data_directory(machine: Machine) -> Iterator[Finding]:
    path: Path = machine.settings.data_dir
    there = next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        yield Finding("data", "fail", f"{there} is not writable for this user; chown it, or set TOPICS_DATA_DIR")
    elif (kind := _file_system(there)) in NETWORK_FILE_SYSTEMS:
        yield Finding("data", "warn", f"{there} is on {kind}, whose syncs promise less; use a local disk")
    else:
        note = "" if there == path.absolute() else ", which will be made"
        yield Finding("data", "ok", f"{path.absolute()}{note}, on {kind}")
    usage, least = shutil.disk_usage(there), machine.settings.min_free_bytes
    shown = f"{size(usage.free)} of {size(usage.total)} are free"
    if usage.free <= least:
        yield Finding("disk", "fail", f"{shown}: writes are refused below {size(least)}; make room, docs/operations.md")
    else:
        scarce = usage.free < max(4 * least, usage.total // 50)
        yield Finding("disk", "warn" if scarce else "ok", shown)


def _file_system(path: Path) -> str:
    """The type of the file system, by the longest mount point above the path."""
    found = ("", "an unknown file system")
    try:
        lines = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return found[1]
    for _, point, kind, *_ in (line.split() for line in lines):
        if path.is_relative_to(point) and len(point) >= len(found[0]):
            found = (point, kind)
    return found[1]


def limits(machine: Machine) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard if hard != resource.RLIM_INFINITY else sys.maxsize
    text = f"{soft} open files, at most {'any number' if most == sys.maxsize else most}"
    remedy = f"raise it to {DESCRIPTORS} or more: ulimit -n, or LimitNOFILE of the unit"
    yield _fine("descriptors", most >= DESCRIPTORS, text, f"{text}; {remedy}")


def service(machine: Machine) -> Iterator[Finding]:
    url = machine.endpoint.url
    try:
        with machine.endpoint.client() as client:
            health = client.get("/v0/health").json()
            ready = client.get("/v0/ready", also=(503,)).status == 200
    except (ClientError, ValueError) as error:
        yield Finding("service", "warn", f"none answers at {url} ({error}); start it with topics serve")
        return
    yield _fine("service", ready, f"{url} is ready", f"{url} is not ready; topics status says why")
    version = health.get("version")
    has = f"the service has {version}"
    older = f"{has}, this command {installed()}; update the older one"
    yield _fine("version", version == installed(), f"{has}, as this command", older)
    yield from _key(machine)
    yield from _clock(url)


def _key(machine: Machine) -> Iterator[Finding]:
    try:
        with machine.endpoint.client() as client:
            client.get("/v0/topics?page_size=1")
    except ClientError as error:
        yield Finding("key", "fail", f"{error}; {TOKEN_REMEDY}")
    else:
        kind = "the token is accepted" if machine.endpoint.token else "no token is needed"
        yield Finding("key", "ok", kind)


def _clock(url: str) -> Iterator[Finding]:
    """The clock of the service, by the time in its answers, which has whole seconds."""
    try:
        away = _skew(url)
    except (ClientError, ValueError, TypeError) as error:
        yield Finding("clock", "warn", f"the time of the service is unknown ({type(error).__name__})")
        return
    text = f"the service's clock is {abs(away):.1f} s {'ahead' if away > 0 else 'behind'}; run chrony or timesyncd"
    yield _fine("clock", abs(away) <= SKEW_S, "this machine and the service agree within 2 s", text)


def _skew(url: str) -> float:
    with Client(url, timeout_s=TIMEOUT_S) as client:
        before = time.time()
        told = parsedate_to_datetime(client.get("/v0/health", also=range(600)).headers["Date"]).timestamp()
        after = time.time()
    if told > after:
        return told - after
    return min(0.0, told + 1 - before)


CHECKS: tuple[Callable[[Machine], Iterator[Finding]], ...] = (packages, port, data_directory, limits, service)
