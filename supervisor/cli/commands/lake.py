"""`topics lake`: topics as Delta tables, written without Spark. `pyspark_topics.lake.local` does it."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from supervisor.cli.endpoint import token_for
from supervisor.cli.own_settings import settings as own_settings
from supervisor.cli.quantities import counted
from supervisor.cli.terminal import (
    HELP_OPTIONS,
    JsonOption,
    Status,
    complain,
    duration_option,
    fail,
    read_size,
    say,
    tell,
)

if TYPE_CHECKING:
    from pyspark_topics.lake.local import Source, Writer

NEEDED = ("deltalake", "pyarrow")
ToOption = Annotated[Path | None, typer.Option("--to", metavar="DIR", help="The lake, a directory of this machine.")]
PathOption = Annotated[
    str | None,
    typer.Option(
        "--path",
        metavar="DIR",
        help="Read this data directory, backup, or bucket (s3://bucket/prefix) [TOPICS_DATA_DIR; ./topics-data].",
    ),
]
ColdOption = Annotated[Path | None, typer.Option(help="The cold tier of --path [TOPICS_COLD_DIR].")]
UrlOption = Annotated[str | None, typer.Option(help="Read from the service at this address.")]
TokenOption = Annotated[str | None, typer.Option(help="An API key of that service; better in TOPICS_TOKEN.")]
TopicOption = Annotated[list[str] | None, typer.Option("--topic", help="Only this topic; may be repeated.")]


def _size(given: str | int) -> int:
    """A size, or 0."""
    return 0 if str(given) == "0" else read_size(given)


app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings=HELP_OPTIONS,
)


@app.callback(invoke_without_command=True)
def lake(
    context: typer.Context,
    to: ToOption = None,
    path: PathOption = None,
    cold_path: ColdOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
    topic: TopicOption = None,
    once: Annotated[bool, typer.Option("--once", help="End when everything is in the lake.")] = False,
    every: Annotated[int | None, duration_option("Pause when nothing is new [10s].")] = None,
    table_per_topic: Annotated[
        bool, typer.Option("--table-per-topic", help="A table for each topic, instead of one for all.")
    ] = False,
    compact_to: Annotated[
        int, typer.Option(parser=_size, metavar="SIZE", help="Join small files up to this size; 0 for none.")
    ] = 128 << 20,
    vacuum_after: Annotated[
        int | None, duration_option("Remove files that a table has not used for this long, in whole hours [none].")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Keep topics as Delta tables, for DuckDB, Polars, pandas and Spark, without a JVM.

    Runs until SIGTERM or Ctrl-C, which end it after the present batch. Each record becomes exactly one row, wherever a
    run was stopped. Needs the extra `lake`. Exit status: 0 done or stopped on request, 1 not possible, 2 wrong
    options, 3 the service of --url did not answer.
    """
    if context.invoked_subcommand is not None:
        return
    if once and every is not None:
        fail("--once ends when everything is in the lake, so --every has no meaning; give one of them", Status.USAGE)
    target = _target(to)
    given = _given(path, cold_path, url, token, topic)
    with _sentences():
        from pyspark_topics.bucket import Bucket
        from pyspark_topics.lake import layout, local

        form = layout.PER_TOPIC if table_per_topic else layout.ONE
        hours = None if vacuum_after is None else vacuum_after / 3_600_000
        source = local.source(given)
        about = layout.About(form, source=Bucket(given.get("url") or given["path"]).shown)
        made = local.begin(target, about, source)
        writer = local.Writer(made, source, local.Settings(compact_to=compact_to, vacuum_after=hours))
        _run(writer, 0 if once else (10_000 if every is None else every) / 1000, once, as_json)


def _run(writer: Writer, pause_s: float, once: bool, as_json: bool) -> None:
    """Add batches until there is nothing new (`once`), or a signal comes."""
    from pyspark_topics.client import Unavailable
    from pyspark_topics.errors import BucketError

    with _stopped() as stop:
        while not stop.is_set():
            try:
                done = writer.batch()
            except (Unavailable, BucketError) as error:
                if once:
                    raise
                complain(str(error))
                done = None
            if done is not None and as_json:
                say({"version": done.version, "records": done.records, "gaps": done.gaps})
            elif done is not None:
                gaps = f", {counted(done.gaps, 'gap')}" if done.gaps else ""
                tell(f"version {done.version}: {counted(done.records, 'record')}{gaps}")
            elif once:
                break
            else:
                stop.wait(pause_s)
        writer.finish()


@contextmanager
def _stopped() -> Iterator[threading.Event]:
    """Context with an event that SIGTERM or Ctrl-C sets. A second signal ends the process at once."""
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def ask(number: int, _: object) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in before:
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@app.command()
def reconcile(
    to: ToOption = None,
    path: PathOption = None,
    cold_path: ColdOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
    topic: TopicOption = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(help="Also delete all rows with this tag, or with `TEXT*` those that begin so; may be repeated."),
    ] = None,
    vacuum: Annotated[
        bool, typer.Option("--vacuum", help="Remove the files with deleted rows, from the table's history too.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete the rows of records that were deleted in the service since.

    What caps and age took from a topic stays in the lake. Exit status: as of `topics lake`.
    """
    target = _target(to)
    given = _given(path, cold_path, url, token, topic)
    with _sentences():
        from pyspark_topics.lake import reconcile as reconciling
        from pyspark_topics.lake.local import Lake, source

        made = Lake(target)
        read: Source = source(given, reconciling.READ)
        counts = reconciling.run(made, read, tag or [], dry_run=dry_run, vacuum=vacuum)
    verb = "to delete" if dry_run else "deleted"
    if as_json:
        say({"rows": counts, "dry_run": dry_run})
    for name, count in {} if as_json else counts.items():
        tell(f"{name}: {count} rows {verb}")
    if not counts and not as_json:
        tell(f"no rows {verb}")


def _target(to: Path | None) -> Path:
    if to is None:
        fail("--to is missing: name the lake, a directory of this machine", Status.USAGE)
    if re.match(r"[a-z][a-z0-9+.-]+:/", str(to)):
        fail(f"--to {to}: topics lake writes to a directory; topics-spark lake writes to object stores", Status.USAGE)
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        fail(
            f"topics lake needs {' and '.join(missing)}: pip install {' '.join(missing)} into {sys.prefix}",
            Status.USAGE,
        )
    return to


def _given(
    path: str | None, cold: Path | None, url: str | None, token: str | None, topics: list[str] | None
) -> dict[str, str]:
    """The source as options of a read."""
    named = {"subscribe": ",".join(topics)} if topics else {}
    if url is not None:
        if path is not None or cold is not None:
            fail("--url and --path both name a source; give one of them", Status.USAGE)
        token = token_for(url, token, os.environ)
        return {"url": url, **({"token": token} if token else {}), **named}
    if path is None:
        settings = own_settings()
        path = str(settings.data_dir)
        cold = cold or (Path(settings.cold_dir) if settings.cold_dir else None)
    return {"path": path, **({"coldPath": str(cold)} if cold else {}), **named}


@contextmanager
def _sentences() -> Iterator[None]:
    """Context that reports errors as a sentence and an exit status."""
    from pyspark_topics.client import ServiceError, Unavailable
    from pyspark_topics.options import BadOption

    try:
        yield
    except Unavailable as error:
        fail(str(error), Status.UNAVAILABLE)
    except BadOption as error:
        fail(str(error), Status.USAGE)
    except (ServiceError, ValueError, OSError) as error:
        fail(str(error), Status.FAILED)
