"""History: what the newest commits of a table say of themselves, read from its Delta log; and its first commit.

`userMetadata` of a commit is a `Mark` if a lake made it. Commits of others that only remove, compact or describe are
passed over. One that adds rows is an error, because the lake no longer knows which rows are its own.
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass, field
from typing import Any, Protocol

from pyspark_topics.lake.layout import About, LakeError, Mark, creation, mark

_COMMIT = re.compile(r"(\d{20})\.json")
_HARMLESS = re.compile(
    r"OPTIMIZE|REORG|VACUUM.*|DELETE|TRUNCATE|FSCK|CLUSTER BY|UPGRADE PROTOCOL|COMPUTE STATS|CHECKPOINT"
    r"|(?:(?:UN)?SET|ADD|DROP|CHANGE|RENAME|UPDATE) (?!.*RESTORE).*"
)
"""Operations that add no rows. Delta's names; `CREATE TABLE` and `WRITE` are not among them."""


class Files(Protocol):
    """The directory of a lake."""

    root: str

    def list(self, name: str) -> list[str]: ...
    def read(self, name: str) -> bytes: ...
    def path(self, name: str) -> str: ...
    def create(self, name: str, content: bytes, unique: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Table:
    """The newest commit of a table, -1 if there is no table, and the newest `Mark`."""

    commit: int = -1
    mark: Mark = field(default_factory=Mark)


def table(files: Files, name: str, known: Table | None = None) -> Table:
    """The state of the table `name`. `known` is what was read before; only later commits are read then. Raises
    `LakeError`."""
    numbers = sorted(int(match[1]) for each in files.list(f"{name}/_delta_log") if (match := _COMMIT.fullmatch(each)))
    best: Mark | None = None
    for number in reversed(numbers):
        if known is not None and number == known.commit:
            return Table(numbers[-1], max(known.mark, best or known.mark, key=_version))
        about = _about(files.read(f"{name}/_delta_log/{number:020d}.json"))
        if (found := mark(about.get("userMetadata"))) is not None:
            best = max(best or found, found, key=_version)
            if not found.repeated:
                return Table(numbers[-1], best)
            continue
        operation = str(about.get("operation", "a commit that does not say what it did"))
        if not _HARMLESS.fullmatch(operation):
            raise LakeError(
                f"{files.path(name)}: commit {number} ({operation}) was not made by this lake, so its rows cannot be "
                f"told from the lake's. Restore the table to version {number - 1} and vacuum it, or take another --to"
            )
    if best is not None:
        return Table(numbers[-1], best)
    if numbers:
        raise LakeError(f"{files.path(name)}: none of its commits says up to where it goes; take another --to")
    return Table()


class Tables:
    """The Delta tables of a lake in the directory `files`."""

    def __init__(self, files: Files, about: About) -> None:
        self._files = files
        self._about = about
        self._known: dict[str, Table] = {}

    def at(self, name: str) -> Table:
        """The state of a table. Raises `LakeError` if something else wrote rows to it."""
        self._known[name] = table(self._files, name, self._known.get(name))
        return self._known[name]

    def create(self, name: str) -> None:
        """Create a table without rows, unless there is one."""
        if self.at(name).commit >= 0:
            return
        first = f"{name}/_delta_log/{0:020d}.json"
        try:
            self._files.create(first, creation(name, self._about.form), uuid.uuid4().hex)
        except FileExistsError:
            pass  # another run was faster


def _version(mark: Mark) -> int:
    return mark.version


def rows(files: Files, name: str, commit: int) -> int:
    """Number of rows that a commit says it wrote."""
    about = _about(files.read(f"{name}/_delta_log/{commit:020d}.json"))
    return int(about.get("operationMetrics", {}).get("numOutputRows", 0))


def _about(commit: bytes) -> dict[str, Any]:
    """`commitInfo` of a commit, wherever its writer puts it."""
    for line in commit.splitlines():
        if b'"commitInfo"' in line and isinstance(found := json.loads(line).get("commitInfo"), dict):
            return found
    return {}
