"""API keys without their secrets: digest, scopes and name prefixes.

`supervisor.config.keys` reads the secrets and derives these; the gateway compares digests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Flag, auto
from typing import Annotated

from msgspec import Meta

from proto.model.errors import ErrorCode, TopicsError

DIGEST_BYTES = 32
ID_BYTES = 8


class Scope(Flag):
    """Permissions of a key. An operation may need several."""

    READ = auto()
    WRITE = auto()
    DELETE = auto()
    ADMIN = auto()

    @property
    def words(self) -> list[str]:
        return [str(scope.name).lower() for scope in Scope if scope in self]


ALL_SCOPES = Scope.READ | Scope.WRITE | Scope.DELETE | Scope.ADMIN


@dataclass(frozen=True, slots=True)
class Key:
    """API key. `digest` is the SHA-256 of the secret. Empty `prefixes` allow any name. It is valid before `expires_ms`,
    since 1970; 0 means for ever. Keys that differ in this alone are equal, so streams outlast its change. Lengths are
    checked when a key is decoded."""

    digest: Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
    scopes: Scope = ALL_SCOPES
    prefixes: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    expires_ms: int = field(default=0, compare=False)

    @property
    def id(self) -> bytes:
        """The stored part of a key, kept with the things that it made, b"" without keys. Logs show its first half."""
        return self.digest[:ID_BYTES]

    def expired(self, now_ms: int) -> bool:
        return 0 < self.expires_ms <= now_ms

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes

    def covers(self, name: str) -> bool:
        """Whether the key may access a topic of this name. Names are ASCII, so this compares bytes."""
        return not self.prefixes or name.startswith(self.prefixes)


def check_name(key: Key, name: str) -> None:
    """Check that the key's prefixes cover `name`. Raises `403 forbidden`."""
    if not key.covers(name):
        raise TopicsError(
            ErrorCode.FORBIDDEN,
            f'this key may not touch "{name}": its names begin with {" or ".join(key.prefixes)}',
            {"reason": "prefix", "topic": name},
        )
