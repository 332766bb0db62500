"""`topics-spark describe`: the schema of a topic's values, inferred from all of its records, or from some.

A field is a member of values that are objects. Spark parses each value once, as a variant, and says the type of each
member. The table has a row for each field and type; `ddl` has one type for each field:

    types met                                    DDL
    one, with or without null                    that one: bigint, double, boolean, string
    whole numbers, and decimals or doubles       double
    objects, or arrays, alike or not             string: their JSON text
    anything else, or null alone                 string

Decimals are double too. Values that are no objects have no field; they are counted as `other`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pyspark_topics.lake.layout import ddl
from pyspark_topics.visible import aligned, visible

EXAMPLE = 60
"""Characters of an example."""
NULL = "null"
_WHOLE, _REAL = "bigint", "double"


@dataclass(frozen=True, slots=True)
class Seen:
    """A type that a field has: in how many records, and the least of their texts as an example."""

    name: str
    type: str
    records: int
    example: str


@dataclass(frozen=True, slots=True)
class Field:
    """A field: its type in DDL, the number of records that lack it or have null, and the types met."""

    name: str
    ddl: str
    missing: int
    nulls: int
    types: Mapping[str, int]
    example: str


def run(frame: Any) -> dict[str, Any]:
    """Describe the column `value` of `frame`. Returns a summary with `fields`, and `ddl`."""
    frame.createOrReplaceTempView("topics_described")
    spark = frame.sparkSession
    spark.sql("SELECT try_parse_json(CAST(value AS STRING)) AS v FROM topics_described").createOrReplaceTempView(
        "topics_parsed"
    )
    records, objects = spark.sql(
        "SELECT count(*), count_if(startswith(schema_of_variant(v), 'OBJECT')) FROM topics_parsed"
    ).first()
    found = spark.sql(
        "SELECT e.key AS name, schema_of_variant(e.value) AS type, count(*) AS records,"
        f" min(left(to_json(e.value), {EXAMPLE})) AS example"
        " FROM topics_parsed, LATERAL variant_explode(v) AS e"
        " WHERE startswith(schema_of_variant(v), 'OBJECT') GROUP BY ALL ORDER BY ALL"
    ).collect()
    described = fields(
        [Seen(row["name"], simple(row["type"]), row["records"], row["example"]) for row in found], objects
    )
    return {
        "records": records,
        "other": records - objects,
        "ddl": ddl({each.name: each.ddl for each in described}),
        "fields": [asdict(each) for each in described],
    }


def simple(variant: str) -> str:
    """The type of a variant's schema: `bigint`, `double`, `boolean`, `string`, `object`, `array`, `null`, …"""
    kind = re.split(r"[<(]", variant, maxsplit=1)[0].lower()
    return {"void": NULL, "decimal": _REAL, "float": _REAL}.get(kind, kind)


def fields(seen: Iterable[Seen], objects: int) -> list[Field]:
    """Fields by name, from the types met in `objects` records."""
    by_name: dict[str, list[Seen]] = {}
    for each in seen:
        by_name.setdefault(each.name, []).append(each)
    found = []
    for name, kinds in sorted(by_name.items()):
        types: dict[str, int] = {}
        for each in kinds:
            types[each.type] = types.get(each.type, 0) + each.records
        told = next((each.example for each in kinds if each.type != NULL), NULL)
        found.append(Field(name, joined(types), objects - sum(types.values()), types.get(NULL, 0), types, told))
    return found


def joined(types: Iterable[str]) -> str:
    """The DDL type for a field with these types."""
    met = {*types} - {NULL}
    if met == {_WHOLE, _REAL}:
        return _REAL
    return met.pop() if len(met) == 1 and met <= {_WHOLE, _REAL, "boolean"} else "string"


def table(done: Mapping[str, Any]) -> str:
    """A summary as a text table, with the DDL below."""
    rows = [("field", "type", "missing", "null", "types met", "example")]
    for each in done["fields"]:
        met = ", ".join(f"{kind} {count}" for kind, count in each["types"].items())
        rows.append((each["name"], each["ddl"], str(each["missing"]), str(each["nulls"]), met, each["example"]))
    other = f", {done['other']} of them no objects" if done["other"] else ""
    return f"{aligned(rows)}\n{done['records']} records{other}\n\n{visible(done['ddl'])}\n"


def printed(done: Mapping[str, Any], form: str) -> str:
    """The output in a form: `table`, `ddl` or `json`."""
    if form == "json":
        return visible(json.dumps(done)) + "\n"
    return f"{visible(done['ddl'])}\n" if form == "ddl" else table(done)
