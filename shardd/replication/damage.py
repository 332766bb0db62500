"""Damage: which objects of a shard cannot be read, or are missing. Logged once each; used in any thread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import structlog

_log: Any = structlog.get_logger()


class Damage:
    def __init__(self, url: str) -> None:
        self._where = f"{url}: "
        self._found: dict[str, str] = {}
        """The damage, by name of the object."""

    def add(self, name: str, problem: str) -> None:
        problem = problem.replace(self._where, "")
        if self._found.get(name) != problem:
            self._found[name] = problem
            _log.error("bucket_damaged", object=name, reason=problem, action="put it back")

    def mended(self, name: str) -> None:
        if self._found.pop(name, None) is not None:
            _log.info("bucket_mended", object=name)

    def replace(self, folder: str, problems: Iterable[str]) -> None:
        """These, each of which begins with the object's name, are all that is wrong in a folder."""
        named = {each.partition(":")[0]: each.partition(": ")[2] for each in problems}
        for name in [name for name in list(self._found) if name.startswith(folder) and name not in named]:
            self.mended(name)
        for name, problem in named.items():
            self.add(name, problem)

    def __len__(self) -> int:
        return len(self._found)

    def __str__(self) -> str:
        """One sentence for each object; empty if all is well. It is shown to strangers: no word of where the bucket
        is."""
        shown = [f"{name}: {problem}" for name, problem in sorted(dict(self._found).items())]
        return "; ".join(shown[:3]) + (f"; and {len(shown) - 3} more" if len(shown) > 3 else "")
