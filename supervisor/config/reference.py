"""Reference of all settings: name, unit, default, bounds and meaning. The end of `docs/configuration.md` is generated
from it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from supervisor.config import keys, units, variables
from supervisor.config.places import FILE_VARIABLE, PREFIX
from supervisor.config.settings import SETTINGS

BEGIN = "<!-- Made by `make reference` from the settings; a test keeps it in step. -->\n\n"
INTRODUCTION = f"""\
Options of the command line win over environment variables, and those over the file. The file is optional: the one that
`{FILE_VARIABLE}` names, else `topics.toml` in the working directory. It has the same names without `{PREFIX}`, in lower
case (`port = 4000`). A wrong value, or a name in the file that means nothing, stops the start with exit status 2 and a
message that names it and what is allowed. A variable `{PREFIX}…` that means nothing causes a warning. An empty variable
counts as unset. `topics config` prints the values in effect, where each is from, and what is wrong.

Sizes and durations may have a unit: {", ".join(f"`{name}`" for name in units.SIZES)};
{", ".join(f"`{name}`" for name in units.DURATIONS)} (`64MiB`, `1.5s`). Without one they are bytes and milliseconds.

Keys are no settings: `{keys.FILE_VARIABLE}` names a file of them, `{keys.VARIABLE}` contains them. They are never in
`topics.toml`, and no command prints them.

Commands that ask a running service (for example `topics status`) find it by `{variables.URL}` and send the
key in `{variables.TOKEN}`.

| Variable | Default | Unit | Allowed | Meaning |
| --- | --- | --- | --- | --- |
"""
_UNITS = {"_ms": "milliseconds", "_bytes": "bytes", "_rate": "bytes per second", "_dir": "path"}


def page(text: str) -> str:
    """A page with the reference after its mark."""
    return text.partition(BEGIN)[0] + BEGIN + markdown()


def markdown() -> str:
    rows = [
        f"| `{PREFIX}{name.upper()}` | {_shown(s.default)} | {_unit(name)} | {s.allowed} | {s.meta.description} |\n"
        for name, s in sorted(SETTINGS.items())
    ]
    return INTRODUCTION + "".join(rows)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return "none" if value in (None, "") else f"`{value}`"


def _unit(name: str) -> str:
    return next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), "")


def main() -> None:
    """`python -m supervisor.config.reference PAGE`: bring the page up to date."""
    path = Path(sys.argv[1])
    path.write_text(page(path.read_text()))


if __name__ == "__main__":
    main()
