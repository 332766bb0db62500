"""Typed columns: members of the value as columns of a table, with what does not fit in `_rescued`.

A member of the value, if that is an object, goes to the column of its name, or to `data_<name>` if a fixed column has
that name. A member that is not of the column's type leaves it null and is in `_rescued`, a JSON object of texts
by column. Columns are only ever added. Members without a column are in `value` alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from pyspark_topics.lake.layout import COLUMNS, RESCUED, VARIANT, About, LakeError, ddl, quoted

PARSED, RAW = "_topics_parsed", "_topics_raw"
_TAKEN = frozenset(name.lower() for name in (*COLUMNS, RESCUED, VARIANT, PARSED, RAW))
_REFUSED = re.compile(r"[ ,;{}()\n\t=]")
"""Characters that Delta refuses in the name of a column."""


def column(member: str) -> str:
    """Name of a member's column."""
    return f"data_{member}" if member.lower() in _TAKEN else member


def evolved(about: About, fields: Iterable[tuple[str, str]], *, strict: bool) -> About:
    """`about` with columns for members `fields` (name, DDL type). With `strict` raises `LakeError` for one that cannot
    be a column or is of another type by now; else leaves it out."""
    columns, members = dict(about.columns), dict(about.members)
    known = {name.lower(): name for name in columns}
    for member, kind in fields:
        name = column(member)
        if not member or _REFUSED.search(member):
            if strict:
                raise LakeError(
                    f"--schema: {member!r} cannot be a column of a Delta table; leave it out, it is in value"
                )
        elif name.lower() not in known:
            columns[name] = kind
            known[name.lower()] = name
            if name != member:
                members[name] = member
        elif strict and (known[name.lower()] != name or columns[name] != kind):
            has = known[name.lower()]
            raise LakeError(
                f"--schema: column {has} is {columns[has]} in this lake, and cannot become {name} {kind}: columns are "
                "only added. Take another --to, or name it otherwise"
            )
    return replace(about, columns=columns, members=members)


def added(before: About, after: About) -> str:
    """The columns that `after` has more, as DDL; "" if none."""
    return ddl({name: kind for name, kind in after.columns.items() if name not in before.columns})


def member(about: About, name: str) -> str:
    return about.members.get(name, name)


def struct(about: About) -> str:
    """The members of typed columns, as DDL."""
    return ddl({member(about, name): kind for name, kind in about.columns.items()})


def expressions(about: About) -> Mapping[str, str]:
    """SQL of the typed columns of a row that has `PARSED` (the value as `struct`) and `RAW` (as a map of texts)."""
    found = {name: f"{PARSED}.{quoted(member(about, name))}" for name in about.columns}
    misfits = ", ".join(
        f"{text(name)}, if({parsed} is null, {RAW}[{text(member(about, name))}], null)"
        for name, parsed in found.items()
    )
    kept = f"map_filter(map({misfits}), (k, v) -> v is not null)" if found else "map()"
    return {**found, RESCUED: f"nullif(to_json({kept}), '{{}}')" if found else "cast(null as string)"}


def text(value: str) -> str:
    """A string as Spark's SQL has it."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
