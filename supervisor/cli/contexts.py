"""Contexts: names for services, each with a URL and the place of its API key, in a file of the user.

    place of the key    where it is
    file                a file of its own, which only its user may read; its first line is the key
    keyring             the keyring of the desktop, through the package `keyring`
    here                this file, which is therefore readable by its user only (0600)
    none                the service needs none

The file is `$XDG_CONFIG_HOME/topics/contexts.json`, by default below `~/.config`. It is replaced as a whole.
"""

from __future__ import annotations

import importlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from supervisor.errors import SupervisorError

SERVICE = "topics"
"""Name of the keyring's entries."""
PRIVATE = 0o077
"""Permissions that a file with a key must not have."""


class ContextError(SupervisorError):
    """A context that cannot be used. The message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Context:
    """A service. At most one of `token`, `token_file` and `keyring` is set."""

    url: str
    token: str | None = None
    token_file: str | None = None
    keyring: bool = False

    @property
    def place(self) -> str:
        """The place of the key, in a word or as the path of its file."""
        return self.token_file or ("keyring" if self.keyring else "here" if self.token else "none")


@dataclass(slots=True)
class Contexts:
    """All contexts, and the name of the one in use."""

    current: str | None = None
    contexts: dict[str, Context] = field(default_factory=dict)

    def find(self, name: str) -> Context:
        """Raises `ContextError`."""
        if name not in self.contexts:
            known = ", ".join(sorted(self.contexts)) or "none"
            raise ContextError(f"there is no context {name!r}; known: {known}. Make it with topics context add")
        return self.contexts[name]


def path(environment: Mapping[str, str]) -> Path:
    base = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME") or Path.home()) / ".config"
    return Path(base) / "topics" / "contexts.json"


def load(file: Path) -> Contexts:
    """The contexts in a file; none if there is no file. Raises `ContextError`."""
    try:
        _check_private(file)
        told = json.loads(file.read_text())
        return Contexts(told["current"], {name: Context(**fields) for name, fields in told["contexts"].items()})
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise ContextError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ContextError(f"{file} is not a file of contexts; remove it, and add the contexts again") from None


def store(file: Path, contexts: Contexts) -> None:
    """Replace the file. Only its user may read it. Raises `ContextError`."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, making = tempfile.mkstemp(dir=file.parent)  # 0600
        with open(descriptor, "w") as writing:
            json.dump(asdict(contexts), writing, indent=2)
        os.replace(making, file)
    except OSError as error:
        raise ContextError(f"{file} cannot be written: {error.strerror}") from None


def token(name: str, context: Context) -> str | None:
    """The key of a context. Raises `ContextError`."""
    if context.token_file:
        return read_token(Path(context.token_file))
    if context.keyring:
        found = keyring().get_password(SERVICE, name)
        if not found:
            raise ContextError(f"the keyring has no token for {name}; add the context again with --keyring")
        return str(found)
    return context.token


def read_token(file: Path) -> str:
    """The first line of a file that only its user may read. Raises `ContextError`."""
    try:
        _check_private(file)
        found = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ContextError(f"the token cannot be read from {file}: {error}") from None
    if not found or not found[0].strip():
        raise ContextError(f"{file} has no token in its first line")
    return found[0].strip()


def keyring() -> Any:
    """The module of the package `keyring`. Raises `ContextError` if it is not installed."""
    try:
        return importlib.import_module("keyring")
    except ImportError:
        raise ContextError("the package keyring is missing: pip install keyring") from None


def _check_private(file: Path) -> None:
    found = file.stat()
    mode = found.st_mode
    if found.st_uid not in (os.getuid(), 0):
        raise ContextError(f"{file} belongs to user {found.st_uid}, who could have you send tokens elsewhere")
    if mode & PRIVATE:
        raise ContextError(f"others may read {file} (mode {mode & 0o777:04o}), which has a token: chmod 600 {file}")
