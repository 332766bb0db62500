"""Request bodies are read the same way wherever they are read: see `proto.body`."""

from __future__ import annotations

from proto.body import parse

__all__ = ["parse"]
