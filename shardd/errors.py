"""The base of this package's errors."""

from __future__ import annotations


class ShardError(Exception):
    """An error of a shard or of its tools. The message says what is wrong and, where something helps, what to do."""
