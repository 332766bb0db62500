"""`topics-spark`: the jobs as a command. The last line of output is a JSON object, the job's summary.

Also for spark-submit: `spark-submit … path/to/pyspark_topics/jobs/__main__.py archive …`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pyspark_topics.jobs.session import session
from pyspark_topics.lake.layout import DELTA, ICEBERG, LENIENT, ONE, PER_TOPIC, About, LakeError
from pyspark_topics.visible import visible

_ERROR = re.compile(r"[A-Za-z_][\w.$]*(?:Error|Exception): ")
"""Exception name at the begin of a traceback's last line."""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="topics-spark", description="Jobs on topics, run by Spark")
    top.set_defaults(master="", conf=[], more_conf=[])
    _spark(top, "conf")
    jobs = top.add_subparsers(dest="job", required=True)

    archive = jobs.add_parser("archive", help="topics to Parquet, by topic and date; each run adds what is new")
    _source(archive)
    archive.add_argument("--to", required=True, metavar="DIR", help="the archive, on any file system of Spark")
    archive.add_argument(
        "--allow-loss", action="store_true", help="continue where records were lost before they were read"
    )
    archive.set_defaults(run=_archive)

    replay = jobs.add_parser("replay", help="Parquet or JSON Lines into topics")
    replay.add_argument("--from", required=True, dest="origin", metavar="DIR", help="an archive, or other such files")
    replay.add_argument("--format", default="", choices=["parquet", "jsonl"], help="default: by the files' names")
    _service(replay)
    replay.add_argument("--topic", action="append", default=[], help="only this topic; repeatable")
    replay.add_argument("--into", default="", metavar="TOPIC", help="one topic for everything")
    replay.add_argument("--prefix", default="", help="put this before each topic's name")
    replay.add_argument("--topic-config", default="", metavar="JSON", help="configuration of topics that are created")
    replay.add_argument("--run-id", default="", help="identifies a repeated run; default: derived from the input")
    replay.add_argument("--tasks", type=int, default=8, help="number of tasks for the topics (default 8)")
    replay.set_defaults(run=_replay)

    report = jobs.add_parser("report", help="counts, bytes, rates, gaps and sizes, by topic, tag, node, hour")
    _source(report, required=False)
    report.add_argument("--archive", default="", metavar="DIR", help="read an archive instead")
    report.add_argument("--by", default="topic", metavar="A,B", help="some of topic,tag,node,hour (default topic)")
    report.add_argument("--parquet", default="", metavar="DIR", help="write the rows there, replacing its content")
    report.add_argument("--svg", default="", metavar="FILE", help="draw the records as a picture")
    report.set_defaults(run=_report)

    audit = jobs.add_parser("audit", help="checksums, indexes, seqs, duplicates, routers; exit status 1 if not clean")
    audit.add_argument("--path", required=True, metavar="DIR", help="the data directory; the service may run")
    audit.add_argument("--cold-path", default=None, metavar="DIR", help="its cold tier, if it has one")
    audit.set_defaults(run=_audit)
    lake = jobs.add_parser("lake", help="topics to Delta or Iceberg tables, once each record; goes on with what comes")
    _lake_options(lake)
    lake.set_defaults(run=_lake)
    for job in (archive, replay, report, audit, lake, _describing(jobs)):
        _spark(job, "more_conf")
    return top


def _describing(jobs: Any) -> argparse.ArgumentParser:
    describe: argparse.ArgumentParser = jobs.add_parser(
        "describe", help="the schema of a topic's values: fields, types, nulls, examples; as a table and as DDL"
    )
    describe.add_argument("topic", metavar="TOPIC")
    _places(describe)
    describe.add_argument("--limit", type=int, default=0, metavar="N", help="look at so many records (default: all)")
    form = describe.add_mutually_exclusive_group()
    form.add_argument("--ddl", dest="form", action="store_const", const="ddl", help="print the DDL alone")
    form.add_argument("--json", dest="form", action="store_const", const="json", help="print one JSON object alone")
    describe.set_defaults(run=_describe, form="table")
    return describe


def _lake_options(job: argparse.ArgumentParser) -> None:
    job.add_argument(
        "action",
        nargs="?",
        choices=["run", "reconcile"],
        default="run",
        help="run (default), or reconcile: delete the rows that the service has deleted",
    )
    job.add_argument("--dry-run", action="store_true", help="reconcile: only count")
    job.add_argument("--tag", action="append", default=[], help="reconcile: delete its rows in any case; repeatable")
    job.add_argument("--vacuum", action="store_true", help="reconcile: remove the files that hold deleted rows at once")
    _source(job)
    job.add_argument("--to", required=True, metavar="DIR", help="the lake, on any file system of Spark")
    job.add_argument("--format", default=DELTA, choices=[DELTA, ICEBERG], help="of the tables (default delta)")
    job.add_argument("--once", action="store_true", help="end when all that is there now is in the tables")
    job.add_argument("--every", type=float, default=10.0, metavar="SECONDS", help="time between batches (default 10)")
    job.add_argument(
        "--max-records", type=_positive, default=1_000_000, metavar="N", help="records of a batch (default 1000000)"
    )
    job.add_argument("--table-per-topic", action="store_true", help="a table for each topic, not one for all")
    job.add_argument(
        "--schema", default="", metavar="F|DDL", help="members of the value as columns: 'n bigint, s string'"
    )
    job.add_argument("--infer", action="store_true", help="columns for the members that records have, as they come")
    job.add_argument("--variant", action="store_true", help="also the value as a VARIANT, which Spark 4 reads")
    job.add_argument(
        "--compact-to",
        type=_size,
        default=128 << 20,
        metavar="BYTES",
        help="join small files to such ones, as 64M; 0: not at all (default 128M)",
    )
    job.add_argument(
        "--vacuum-after",
        type=float,
        default=None,
        metavar="HOURS",
        help="remove files unused for so long; default: none",
    )


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def _size(text: str) -> int:
    """Bytes, with K, M or G for powers of 1024."""
    found = re.fullmatch(r"(\d+)([KMG]?)", text.upper())
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: bytes, or with K, M or G")
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]]


def _spark(parser: argparse.ArgumentParser, conf: str) -> None:
    """Add options of Spark, before or after the name of the job. `--conf` counts in both places."""
    unset = argparse.SUPPRESS
    parser.add_argument(
        "--master", default=unset, help="as of spark-submit; default: its, or all cores of this machine"
    )
    parser.add_argument(
        "--conf", action="append", dest=conf, default=unset, metavar="NAME=VALUE", help="a setting of Spark; repeatable"
    )


def _source(job: argparse.ArgumentParser, *, required: bool = True) -> None:
    _places(job, required=required)
    topics = job.add_mutually_exclusive_group()
    topics.add_argument("--subscribe", default="", metavar="A,B", help="these topics")
    topics.add_argument("--subscribe-pattern", default="", metavar="REGEX", help="topics whose whole name matches")


def _places(job: argparse.ArgumentParser, *, required: bool = True) -> None:
    either = job.add_mutually_exclusive_group(required=required)
    either.add_argument("--path", default="", metavar="DIR", help="read the files of this data directory")
    either.add_argument("--url", default="", help="read from the service at this address")
    job.add_argument("--cold-path", default="", metavar="DIR", help="the cold tier of the data directory")
    job.add_argument("--token", default=None, help="API key (default: the environment's TOPICS_TOKEN)")


def _service(job: argparse.ArgumentParser) -> None:
    known = os.environ.get("TOPICS_URL", "")
    job.add_argument("--url", default=known, required=not known, help="address of the service (TOPICS_URL)")
    job.add_argument("--token", default=None, help="API key (default: the environment's TOPICS_TOKEN)")


def _options(given: argparse.Namespace) -> dict[str, str]:
    """The arguments as options of a read or a write."""
    token = _token(given.url) if given.url and given.token is None else given.token
    named = {
        "path": getattr(given, "path", ""),
        "url": given.url,
        "token": token if given.url else "",
        "coldPath": getattr(given, "cold_path", ""),
        "subscribe": getattr(given, "subscribe", ""),
        "subscribePattern": getattr(given, "subscribe_pattern", ""),
        "topicConfig": getattr(given, "topic_config", ""),
        "runId": getattr(given, "run_id", ""),
    }
    return {name: value for name, value in named.items() if value}


def _token(url: str) -> str:
    """TOPICS_TOKEN, unless TOPICS_URL says that it is the key of another service."""
    from pyspark_topics.client import origin

    theirs = os.environ.get("TOPICS_URL")
    return os.environ.get("TOPICS_TOKEN", "") if not theirs or origin(theirs) == origin(url) else ""


def _archive(spark: Any, given: argparse.Namespace) -> dict[str, Any]:
    from pyspark_topics.jobs import archive
    from pyspark_topics.jobs.store import Store
    from pyspark_topics.sources import positions

    options = _options(given)
    lenient = {"failOnDataLoss": "false"} if given.allow_loss else {}
    return archive.run(
        spark, positions(options | lenient), options, Store(spark, given.to), fail_on_data_loss=not given.allow_loss
    )


def _lake(spark: Any, given: argparse.Namespace) -> dict[str, Any]:
    from pyspark_topics.bucket import Bucket
    from pyspark_topics.jobs import lake
    from pyspark_topics.jobs.store import Store
    from pyspark_topics.lake import typed
    from pyspark_topics.sources import positions

    options = {**_options(given), **LENIENT}
    if given.action == "reconcile":
        from pyspark_topics.jobs import lake_reconcile

        return lake_reconcile.run(
            spark,
            positions(options),
            options,
            Store(spark, given.to),
            given.tag,
            given.dry_run,
            given.vacuum,
            given.format,
        )
    wanted = About(
        PER_TOPIC if given.table_per_topic else ONE,
        source=Bucket(given.path or given.url).shown,
        infer=given.infer,
        variant=given.variant,
        tables=given.format,
    )
    wanted = typed.evolved(wanted, lake.schema(spark, given.schema) if given.schema else [], strict=True)
    settings = lake.Settings(given.max_records, given.compact_to, given.vacuum_after, given.once, given.every)
    return lake.run(spark, positions(options), options, Store(spark, given.to), wanted, settings)


def _replay(spark: Any, given: argparse.Namespace) -> dict[str, Any]:
    from pyspark_topics.jobs import replay
    from pyspark_topics.jobs.store import Store

    return replay.run(
        spark,
        Store(spark, given.origin),
        _options(given),
        form=given.format,
        only=given.topic,
        into=given.into,
        prefix=given.prefix,
        tasks=given.tasks,
    )


def _report(spark: Any, given: argparse.Namespace) -> dict[str, Any]:
    from pyspark_topics.jobs import report

    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
    if given.archive:
        frame = spark.read.parquet(given.archive)
    else:
        columns = "topic, offset, timestamp, node, tag, value, meta"
        frame = spark.read.format("topics").options(**_options(given), columns=columns).load()
    by = [name.strip() for name in given.by.split(",")]
    measured = report.measure(frame, by)
    if given.parquet:
        measured.write.mode("overwrite").parquet(given.parquet)
        measured = spark.read.parquet(given.parquet).orderBy(*by)
    rows = measured.collect()
    sys.stdout.write(report.table(rows))
    if given.svg:
        title = f"Records by {', '.join(by)}: {given.archive or given.path or given.url}"
        Path(given.svg).write_text(report.svg(rows, by, title))
    return {"groups": len(rows), "records": sum(row["records"] for row in rows)}


def _describe(spark: Any, given: argparse.Namespace) -> dict[str, Any]:
    from pyspark_topics.jobs import describe

    reading = spark.read.format("topics")
    frame = reading.options(**_options(given), subscribe=given.topic, columns="value").load()
    done = describe.run(frame.limit(given.limit) if given.limit else frame)
    sys.stdout.write(describe.printed(done, given.form))
    return {"topic": given.topic, "records": done["records"], "fields": len(done["fields"])}


def _audit(spark: Any, given: argparse.Namespace) -> dict[str, Any]:
    from pyspark_topics.jobs import audit

    return audit.run(spark, given.path, given.cold_path)


def main(arguments: Sequence[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    if given.job == "report" and not (given.path or given.url or given.archive):
        parser().error("report: one of --path, --url, --archive is needed")
    if given.job == "audit" and not Path(given.path).is_dir():
        # A mistyped path is reported before Spark starts, which takes seconds.
        sys.stderr.write(f"topics-spark audit: {given.path}: there is no such directory\n")
        return 2
    missing = [name for name in ("pyspark", "pyarrow") if find_spec(name) is None]
    if missing:
        sys.stderr.write(
            f"topics-spark needs {' and '.join(missing)}: pip install 'pyspark>=4.0' 'pyarrow>=18' into {sys.prefix}\n"
        )
        return 2
    settings = dict(setting.partition("=")[::2] for setting in [*given.conf, *given.more_conf])
    from pyspark_topics.client import Endpoint, ServiceError

    try:
        if given.job == "lake":
            settings = _with_format(settings, given)
        if getattr(given, "url", ""):
            Endpoint.of(_options(given)).reach()  # before Spark starts, which takes seconds
        spark = session(given.job, given.master, settings)
    except (OSError, ServiceError, LakeError) as error:
        sys.stderr.write(visible(f"topics-spark {given.job}: {error}") + "\n")
        return 2
    failed = ""
    try:
        done: dict[str, Any] = given.run(spark, given)
    except Exception as error:
        if os.environ.get("TOPICS_SPARK_TRACEBACK"):
            raise
        failed = _sentence(error)
    finally:
        spark.stop()
    if failed:  # after all of Spark's output
        sys.stderr.write(visible(f"topics-spark {given.job}: {failed}") + "\n")
        return 2
    if getattr(given, "form", "table") == "table":
        sys.stdout.write(visible(json.dumps({"job": given.job, **done})) + "\n")
    return 0 if done.get("clean", True) else 1


def _with_format(settings: dict[str, str], given: argparse.Namespace) -> dict[str, str]:
    import pyspark

    from pyspark_topics.lake import formats

    home = os.environ.get("SPARK_HOME") or Path(str(pyspark.__file__)).parent
    known = {**({"spark.master": given.master} if given.master else {}), **settings}
    return formats.settings(given.format, pyspark.__version__, known, Path(home) / "jars")


def _sentence(error: Exception) -> str:
    """The cause of an error, in one line. Spark wraps exceptions of tasks in long tracebacks. The cause is the last
    line that names an error of this package, else Java's last "Caused by", else the last line that names an error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for found in (
        [line for line in lines if line.startswith("pyspark_topics.")],
        [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")],
        [line for line in lines[1:] if _ERROR.match(line)],
    ):
        if found:
            return found[-1]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
