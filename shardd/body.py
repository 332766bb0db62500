"""Request bodies are parsed here as they are in the gateway."""

from __future__ import annotations

from proto.body import parse

__all__ = ["parse"]
