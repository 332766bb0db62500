"""Endpoint: the URL of the service that a client uses, and the token that it sends, as the command line finds them.

    url=                            that URL
    else context=                   the URL of that context
    else TOPICS_URL                 that URL
    else TOPICS_CONTEXT, else the context in use: its URL
    else                            http://127.0.0.1:4000

The token is `token=`, else that of the context if the URL is from it, else TOPICS_TOKEN. A token that was not given in
the program goes only where it belongs: that of a context to its URL, and TOPICS_TOKEN, if TOPICS_URL is set, to that
scheme, host and port. An empty `token=""` sends none.

`topics context add` writes the file of contexts: `$XDG_CONFIG_HOME/topics/contexts.json`, by default below `~/.config`.
A file that others may read, or that another user owns, is refused: it has a key, or could send one elsewhere.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

URL = "http://127.0.0.1:4000"


def resolve(
    url: str | None, token: str | None, context: str | None, environment: Mapping[str, str]
) -> tuple[str, str | None]:
    """URL and token. Raises `ValueError` if they cannot be used, and if `url` and `context` are both given;
    `TypeError` if one of them is no text."""
    for name, value in (("url", url), ("token", token), ("context", context)):
        if not isinstance(value, str | None):
            raise TypeError(f"{name} is a str, not {type(value).__name__}")
    if url is not None and context is not None:
        raise ValueError("url and context both name a service; give one of them")
    theirs = environment.get("TOPICS_URL")
    if url is None and (context is not None or not theirs):
        url, token = _of_context(context or environment.get("TOPICS_CONTEXT"), token, environment)
    if url is None:
        url = theirs or URL
    if token is None and (not theirs or _origin(theirs) == _origin(url)):
        token = environment.get("TOPICS_TOKEN")
    _origin(url)
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise ValueError("the token has a space, a line break or another character that no key has")
    return url, token or None


def _origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port. Raises `ValueError`."""
    try:
        parts = urlsplit(url)
        default = {"http": 80, "https": 443}[parts.scheme]
        if not parts.hostname:
            raise ValueError
        return parts.scheme, parts.hostname, default if parts.port is None else parts.port
    except (ValueError, KeyError):
        raise ValueError(f"{url!r} is not the URL of a service: {URL} is one") from None


def _of_context(name: str | None, token: str | None, environment: Mapping[str, str]) -> tuple[str | None, str | None]:
    """URL and token of a context, by default of the one in use; the URL is None if there is none."""
    base = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME") or Path.home()) / ".config"
    file = Path(base) / "topics" / "contexts.json"
    try:
        told = json.loads(_private(file))
        known: dict[str, Any] = told["contexts"]
        current = told["current"]
        name = name or current
        if not name:
            return None, token
        found = known.get(name)
        if found is not None:
            return str(found["url"]), _token(name, found) if token is None else token
    except FileNotFoundError:
        if not name:
            return None, token
        known = {}
    except (AttributeError, KeyError, TypeError, json.JSONDecodeError):
        raise ValueError(f"{file} is not a file of contexts: `topics context add` makes one") from None
    others = ", ".join(sorted(known)) or "none"
    raise ValueError(f"there is no context {name!r}; known: {others}. Make it with `topics context add`")


def _token(name: str, context: Mapping[str, Any]) -> str | None:
    """The key of a context: from a file of its own, the keyring of the desktop, or the file of contexts."""
    if file := context.get("token_file"):
        try:
            first, *_ = [*_private(Path(file)).splitlines(), ""]
        except OSError as error:
            raise ValueError(f"the key of context {name} cannot be read: {error}") from None
        if not first.strip():
            raise ValueError(f"{file}, which context {name} names, has no key in its first line")
        return first.strip()
    if not context.get("keyring"):
        return context.get("token")
    try:
        found = importlib.import_module("keyring").get_password("topics", name)
    except ImportError:
        raise ValueError(f"context {name} has its key in the keyring: pip install keyring") from None
    if not found:
        raise ValueError(f"the keyring has no key for context {name}")
    return str(found)


def _private(path: Path) -> str:
    """The text of a file that only its user may read. Raises `ValueError`, `OSError`."""
    try:
        with path.open(encoding="utf-8") as file:
            found = os.fstat(file.fileno())
            if hasattr(os, "getuid"):  # Windows has neither owners nor modes
                if found.st_uid not in (os.getuid(), 0):
                    raise ValueError(f"{path} belongs to user {found.st_uid}, who could have you send keys elsewhere")
                if found.st_mode & 0o077:
                    raise ValueError(f"others may read {path}, which has a key: chmod 600 {path}")
            return file.read()
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text") from None
