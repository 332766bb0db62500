"""The base of this package's errors."""

from __future__ import annotations


class SupervisorError(Exception):
    """An error of the supervisor or of the command `topics`. The message is for the operator."""
