"""The base of this package's errors."""

from __future__ import annotations


class GatewayError(Exception):
    """An error of the gateway that is no answer: those are `proto.model.errors.TopicsError`."""
