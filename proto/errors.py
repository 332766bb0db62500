"""The base of this package's errors."""

from __future__ import annotations


class ProtoError(Exception):
    """An error that gateway, shards and supervisor share."""
