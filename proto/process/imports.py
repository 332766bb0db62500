"""Import of structlog without what it imports just in case: rich, for tracebacks with local variables, and asyncio.

They are most of its memory and of the time that it takes to load, and no process uses either.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any, cast


def load_structlog() -> None:
    """Call it at the start of a process, before any other module imports structlog."""
    with instead("rich", None), instead("asyncio", Later("asyncio")):
        import structlog  # noqa: F401


class Later(ModuleType):
    """A module that is imported when the first attribute of it is used."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)


@contextmanager
def instead(name: str, module: ModuleType | None) -> Iterator[None]:
    """Within, importing `name` returns `module`; None raises ImportError. A module that is already loaded stays."""
    if name in sys.modules:
        yield
        return
    cast("dict[str, ModuleType | None]", sys.modules)[name] = module
    try:
        yield
    finally:
        del sys.modules[name]
