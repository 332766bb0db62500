"""`topics-spark replay`: writes records from Parquet or JSON Lines to topics.

Parquet files are those of `archive`, or have the columns of `writer`. A line of JSON is an object with `topic`, `data`
(or `value`), and optionally `tag`, `node`, `meta`. The names of a diff (`$tag`, `$node`, `$seq`, `$ts`) and lines of
`topics export` are accepted too. `data` and `meta` are passed on as JSON text, unchanged.

One task writes the records of a topic, ordered by epoch and seq if these are known, else in file order. They get new
seqs and times. A run repeated with the same input, into the same service, within the topics' idempotency window,
continues where the first one stopped: its `runId` is derived from the files' names and sizes and from the parameters.
After that window, all records are written again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyspark_topics.jobs.store import Store
from pyspark_topics.members import members

LINES = "topic string, value string, tag string, node string, meta string, offset long"
ORDER = ("epoch", "offset")
PLACE = "_place"
"""Column with a record's position in the files."""


class ReplayError(ValueError):
    """The input cannot be replayed. The message says why and what to do."""


def run(
    spark: Any,
    store: Store,
    options: Mapping[str, str],
    *,
    form: str = "",
    only: Iterable[str] = (),
    into: str = "",
    prefix: str = "",
    tasks: int = 8,
) -> dict[str, Any]:
    """Write the records of the files in `store`. Returns a summary.

    `options` are the writer's. `form`: parquet or jsonl, by default from the files' names. `only`: topics to write.
    `into`: one topic for all records. `prefix`: put before each topic's name.

    Raises `ReplayError`, `ServiceError` and Spark's exceptions.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    spark.conf.set("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
    files = sorted(store.files(""))
    files = [(name, size) for name, size in files if not any(part[0] in "._" for part in name.split("/"))]
    form = form or _form(store, files)
    frame = _lines(spark, store.root) if form == "jsonl" else spark.read.parquet(store.root)
    if "value" not in frame.columns and "data" not in frame.columns:
        raise ReplayError(f"{store.root}: no column value (or data) among {', '.join(frame.columns)}")
    if into:
        frame = frame.withColumn("topic", f.lit(into))
    elif "topic" not in frame.columns:
        raise ReplayError(f"{store.root}: no column topic among {', '.join(frame.columns)}; name one by --into")
    chosen = sorted(set(only))
    if chosen:
        frame = frame.where(f.col("topic").isin(chosen))
    if prefix:
        frame = frame.withColumn("topic", f.concat(f.lit(prefix), "topic"))
    order = [column for column in ORDER if column in frame.columns]
    frame = frame.withColumn(PLACE, f.monotonically_increasing_id())
    frame = frame.repartition(tasks, "topic").sortWithinPartitions("topic", *order, PLACE)
    from pyspark_topics.writer import COLUMNS

    frame = frame.select(*[column for column in frame.columns if column in COLUMNS])
    asked = json.dumps([files, form, chosen, into, prefix, tasks, sorted(frame.columns)])
    run_id = "replay-" + hashlib.sha256(asked.encode()).hexdigest()[:32]
    seen = Observation()
    counted = frame.observe(seen, f.count("*").alias("rows"))
    counted.write.format("topics").options(**{"runId": run_id, **options}).mode("append").save()
    return {"records": int(seen.get["rows"]), "files": len(files), "run_id": run_id}


def _form(store: Store, files: list[tuple[str, int]]) -> str:
    endings = {name.removesuffix(".gz").rpartition(".")[2] for name, _ in files}
    if endings == {"parquet"}:
        return "parquet"
    if endings and endings <= {"jsonl", "ndjson", "json"}:
        return "jsonl"
    raise ReplayError(
        f"{store.root}: files end with {', '.join(sorted(endings)) or 'nothing'}; say --format parquet or jsonl"
    )


def _lines(spark: Any, root: str) -> Any:
    return spark.createDataFrame(spark.sparkContext.textFile(root).mapPartitions(_parsed), LINES)


def _parsed(lines: Iterator[str]) -> Iterator[tuple[Any, ...]]:
    """Parse JSON lines into rows. Spark's own reader would not keep the text of `data`."""
    for line in lines:
        if not line.strip():
            continue
        try:
            given: dict[str, str] = {json.loads(f'"{key}"'): text for key, text in members(line)}
            if "$topic" in given or "$gap" in given:
                continue  # lines of `topics export` that are not records
            plain = {name.removeprefix("$"): text for name, text in given.items()}
            names = {name: _string(plain.get(name)) for name in ("topic", "tag", "node")}
            data = plain.get("data", plain.get("value"))
            if data is None:
                raise ValueError("neither data nor value is there")
            meta = plain.get("meta")
            seq = int(plain["seq"]) if "seq" in plain else None
        except ValueError as error:
            raise ReplayError(f"{line[:200]!r} is not a record: {error}") from error
        yield names["topic"], data, names["tag"], names["node"], None if meta == "null" else meta, seq


def _string(text: str | None) -> str | None:
    value = None if text is None else json.loads(text)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{text} is not a string")
    return value
