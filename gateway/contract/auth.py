"""Who asks, and whether they may: keys known by their digests, scopes, prefixes of names.

The secret a client presents lives only in its request; it is hashed, compared with every digest, and never kept, logged
or shown.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gateway.contract.operations import Operation
from proto.model.errors import ErrorCode, TopicsError
from proto.model.keys import Key, Scope

EVERYBODY = Key(b"")
"""Who asks where no keys are configured."""
UNPROVEN = Key(b"", Scope(0))
"""Who opens a WebSocket without a key, and is to send one in its first message."""


class Keyring:
    """The keys of the service. None: nobody is asked for one."""

    def __init__(self, keys: Sequence[Key] | None) -> None:
        self._keys = keys
        self._lasting: dict[object, tuple[Key, Callable[[], object]]] = {}
        """What lasts only as long as its key does: whose it is, and what ends it."""

    @property
    def open(self) -> bool:
        return self._keys is None

    def replace(self, keys: Sequence[Key]) -> None:
        """From now on these are known and no others. What lasts for keys that are gone, or changed, ends."""
        self._keys = keys
        known = frozenset(keys)
        for key, end in tuple(self._lasting.values()):
            if key not in known:
                end()

    def knows(self, key: Key) -> bool:
        """Whether the key may still do what it could when it was identified."""
        return self._keys is None or key in self._keys

    @contextmanager
    def while_known(self, key: Key, end: Callable[[], object]) -> Iterator[None]:
        """Call `end` if the key goes while this lasts, at once if it is gone already."""
        entry = object()
        self._lasting[entry] = (key, end)
        try:
            if not self.knows(key):
                end()
            yield
        finally:
            del self._lasting[entry]

    def identify(self, authorization: bytes) -> Key:
        """The key that an Authorization header presents. Raises `401 unauthorized`.

        Time tells nothing: every digest is compared, each in constant time, whether or not one matched before.
        """
        keys = self._keys
        if keys is None:
            return EVERYBODY
        if not authorization:
            raise unauthorized("this needs a key: send the header `Authorization: Bearer <key>`")
        scheme, _, token = authorization.partition(b" ")
        token = token.strip(b" \t")
        if scheme.lower() != b"bearer" or not token:
            raise unauthorized("the Authorization header must read `Bearer <key>`")
        digest = hashlib.sha256(token).digest()
        same = [hmac.compare_digest(key.digest, digest) for key in keys]
        if True not in same:
            raise unauthorized("this key is not known here")
        return keys[same.index(True)]


def unauthorized(message: str) -> TopicsError:
    return TopicsError(ErrorCode.UNAUTHORIZED, message)


def key_is_gone() -> TopicsError:
    return unauthorized("the service's keys have changed, and this one is gone or may do something else; connect again")


def check_scope(key: Key, scope: Scope) -> None:
    """Raises `403 forbidden` unless the key has all of `scope`."""
    if not key.may(scope):
        missing = (scope & ~key.scopes).words
        raise TopicsError(
            ErrorCode.FORBIDDEN,
            f"this key lacks the scope {' and '.join(missing)}; use one that has it",
            {"reason": "scope", "missing": missing},
        )


def check_name(key: Key, name: str) -> None:
    """Raises `403 forbidden` for a name outside the key's prefixes."""
    if not key.covers(name):
        raise TopicsError(
            ErrorCode.FORBIDDEN,
            f'this key may not touch "{name}": its names begin with {" or ".join(key.prefixes)}',
            {"reason": "prefix", "topic": name},
        )


def restrictions(key: Key, operation: Operation) -> dict[str, Any]:
    """What the shard must know of a key, as options: only it knows what exists and reads what a body names.

    `may_configure` False: the write must not create a topic with a configuration of its own. `prefixes`: names that a
    body brings in must begin with one of these. Both are left out where they restrict nothing.
    """
    options: dict[str, Any] = {}
    if operation.grows:
        if not key.may(Scope.ADMIN):
            options["may_configure"] = False
        if key.prefixes:
            options["prefixes"] = list(key.prefixes)
    return options
