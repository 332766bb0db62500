"""Records as lines: how `topics read` and `topics tail` choose and print them."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import typer

from supervisor.cli import exact
from supervisor.cli.terminal import complain, joined, paint, write_line
from supervisor.client.python_client import Gap, Record, TopicDeleted

_COLORS = ("cyan", "magenta", "yellow", "green", "blue", "bright_red")


@dataclass(slots=True)
class Chosen:
    """Which records are printed: all that meet every condition."""

    tag: str | None
    grep: re.Pattern[str] | None
    where: list[tuple[list[str], str]]

    def __call__(self, record: Record) -> bool:
        if self.tag is not None and not fnmatch.fnmatchcase(record.tag or "", self.tag):
            return False
        if self.grep is not None and not self.grep.search(exact.dumps(record.data)):
            return False
        return all(exact.text(_at(record.data, path)) == wanted for path, wanted in self.where)


def chosen(tag: str | None, grep: str | None, where: list[str] | None) -> Chosen:
    """Parse the options. Raises `typer.BadParameter`."""
    try:
        pattern = None if grep is None else re.compile(grep)
    except re.error as error:
        raise typer.BadParameter(f"--grep {grep} is no regular expression: {error}") from None
    conditions = []
    for each in where or []:
        path, equals, wanted = each.partition("=")
        if not equals or not path:
            raise typer.BadParameter(f"--where {each} must be PATH=VALUE, such as customer.id=42")
        if path.endswith(" "):  # PATH = VALUE, or PATH == VALUE
            path, wanted = path.rstrip(), wanted.removeprefix("=").lstrip()
        conditions.append((path.split("."), wanted))
    return Chosen(tag, pattern, conditions)


def _at(data: Any, path: list[str]) -> Any:
    """The value at a path of names and indexes; None if there is none."""
    for name in path:
        if isinstance(data, dict):
            data = data.get(name)
        elif isinstance(data, list) and name.isdecimal() and int(name) < len(data):
            data = data[int(name)]
        else:
            return None
    return data


@dataclass(slots=True)
class Printer:
    """Prints records, gaps and the end of topics. `gaps` counts the gaps."""

    choose: Callable[[Record], bool]
    as_json: bool
    data_only: bool
    several: bool
    gaps: int = 0
    _colors: dict[str, str] = field(default_factory=dict)

    def item(self, item: Record | Gap | TopicDeleted) -> bool:
        """Print one item; false if it was not chosen."""
        if isinstance(item, Record):
            if not self.choose(item):
                return False
            write_line(self._line(item))
        elif isinstance(item, Gap):
            self.gaps += 1
            complain(f"{item.topic}: records {item.first_seq} to {item.last_seq} are lost ({item.reason})")
            if self.as_json:
                lost = {"first_seq": item.first_seq, "last_seq": item.last_seq, "reason": item.reason}
                write_line(exact.dumps({"topic": item.topic, "gap": lost}))
        else:
            complain(f"{item.topic} was deleted")
        return True

    def _line(self, record: Record) -> str:
        data = exact.dumps(record.data)
        if self.data_only:
            return data
        if self.as_json:
            fields = {name: getattr(record, name) for name in ("topic", "seq", "ts", "tag", "node", "data", "meta")}
            return exact.dumps({name: value for name, value in fields.items() if value is not None or name == "data"})
        time = datetime.fromtimestamp(record.ts / 1000).isoformat(sep=" ", timespec="milliseconds")
        parts = [paint(str(record.seq), "bright_black"), paint(time, "bright_black")]
        if self.several:
            color = self._colors.setdefault(record.topic, _COLORS[len(self._colors) % len(_COLORS)])
            parts.insert(0, paint(record.topic, color))
        if record.tag is not None:
            parts.append(paint(record.tag, "cyan"))
        return joined(*parts, data)
