"""What a child is started with: its first message, the descriptors that it inherits, and its environment."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from proto.ipc.control import Start
from supervisor.process.forks import Forked

_KEPT = ("PATH", "HOME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "TERM", "NO_COLOR")
_KEPT_PREFIXES = ("PYTHON", "LC_", "MALLOC_")
_STORES = ("AWS_", "GOOGLE_", "AZURE_", "SSL_CERT_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
"""Beginnings of the variables by which clients of object stores are configured."""
StartProcess = Callable[[str, Mapping[str, str], Sequence[int]], Awaitable[Forked]]
"""Starts a process: its title, its environment, and the descriptors that it inherits. Raises OSError."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Parameters of one incarnation: its first message, and descriptors that it inherits with their numbers.
    `in_hand_fd` is one of them."""

    start: Callable[[], Start]
    """Called when the process is there. The child cannot be told what changes before that, so the first message has to
    contain it."""
    inherit: tuple[int, ...] = ()
    in_hand_fd: int = -1


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a child is made of. `prepare` is called with the number of each incarnation before its start."""

    name: str
    start: StartProcess
    environment: Mapping[str, str]
    prepare: Callable[[int], Launch]
    restart_limit: int
    vital: Callable[[], bool]
    """Whether the service ends if the child cannot be started; otherwise the child is held and retried."""


def environment_for_children(environment: Mapping[str, str], **more: str) -> dict[str, str]:
    """The part of the supervisor's environment that children get: enough to run Python, no keys, no settings."""
    kept = {n: v for n, v in environment.items() if n in _KEPT or n.startswith(_KEPT_PREFIXES)}
    return {**kept, **more}


def credentials_of_stores(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that configure clients of object stores."""
    return {name: value for name, value in environment.items() if name.upper().startswith(_STORES)}
