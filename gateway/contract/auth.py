"""Authentication and authorization: keys known by their digests, scopes, prefixes of names.

A client's secret is in its requests. The keyring hashes it and compares it with every digest; it neither keeps, logs
nor shows the secret. Heads of allowed requests are remembered (`gateway.http.known_heads`) until the keys change.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from time import time

from proto.model.errors import ErrorCode, TopicsError
from proto.model.keys import Key, Scope

EVERYBODY = Key(b"")
"""The key of every client where no keys are configured."""
UNPROVEN = Key(b"", Scope(0))
"""The key of a client that opened a WebSocket without one; its first message must bring a key."""


class Keyring:
    """The keys of the service. None: clients need no key. `expire` has to be called when it says."""

    def __init__(self, keys: Sequence[Key] | None, now_ms: Callable[[], int] = lambda: int(time() * 1000)) -> None:
        self._now_ms = now_ms
        self._given = keys
        """With those that have expired."""
        self._keys = keys
        self.version = 0
        """Increases whenever the keys change. Decisions under an earlier version no longer hold."""
        self.on_change: list[Callable[[], object]] = []
        """Called whenever the keys change."""
        self._lasting: dict[object, tuple[Key, Callable[[], object]]] = {}
        """Streams and waiting requests that end with their key: the key, and the function that ends them."""

    @property
    def open(self) -> bool:
        return self._keys is None

    @property
    def several(self) -> bool:
        """Whether there are keys that could take something from each other."""
        return self._keys is not None and len(self._keys) > 1

    def replace(self, keys: Sequence[Key]) -> None:
        """Replace all keys. Streams and waiting requests of removed or changed keys end."""
        self._given = keys
        self._apply()

    def expire(self) -> int | None:
        """Remove the keys that have expired, as `replace` does. Returns how long the next one has, ms; None if none
        will expire."""
        now = self._now_ms()
        if any(key.expired(now) for key in self._keys or ()):
            self._apply()
        times = [key.expires_ms for key in self._keys or () if key.expires_ms]
        return min(times) - now if times else None

    def _apply(self) -> None:
        now = self._now_ms()
        self._keys = [key for key in self._given or () if not key.expired(now)]
        self.version += 1
        for forget in self.on_change:
            forget()
        known = frozenset(self._keys)
        for key, end in tuple(self._lasting.values()):
            if key not in known:
                end()

    def knows(self, key: Key) -> bool:
        """Whether the key still exists, with the same rights as when it was identified."""
        now = self._now_ms()
        return self._keys is None or any(each == key and not each.expired(now) for each in self._keys)

    @contextmanager
    def while_known(self, key: Key, end: Callable[[], object]) -> Iterator[None]:
        """Call `end` if the key is removed inside the context, or at once if it is gone already."""
        entry = object()
        self._lasting[entry] = (key, end)
        try:
            if not self.knows(key):
                end()
            yield
        finally:
            del self._lasting[entry]

    def identify(self, authorization: bytes) -> Key:
        """Return the key that an Authorization header presents. Raises `401 unauthorized`.

        The duration reveals nothing: every digest is compared in constant time, whether or not an earlier one matched.
        """
        keys = self._given
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
        found = keys[same.index(True)]
        if found.expired(self._now_ms()) or found not in (self._keys or ()):  # the clock may have been set back
            raise unauthorized(f"this key expired at {_shown(found.expires_ms)}; use another one")
        return found


def _shown(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def unauthorized(message: str) -> TopicsError:
    return TopicsError(ErrorCode.UNAUTHORIZED, message)


def key_is_gone() -> TopicsError:
    return unauthorized("this key is gone, has expired or may do something else since the keys changed; connect again")


def check_scope(key: Key, scope: Scope) -> None:
    """Check that the key has all of `scope`. Raises `403 forbidden`."""
    if not key.may(scope):
        missing = (scope & ~key.scopes).words
        raise TopicsError(
            ErrorCode.FORBIDDEN,
            f"this key lacks the scope {' and '.join(missing)}; use one that has it",
            {"reason": "scope", "missing": missing},
        )


def restrictions(key: Key) -> tuple[bool, tuple[str, ...]]:
    """Return a key's restrictions: `may_configure` and `prefixes`, the first two fields of `Growing`. The shard gets
    them, because only the shard knows which topics exist and reads the names in a body."""
    return key.may(Scope.ADMIN), key.prefixes
