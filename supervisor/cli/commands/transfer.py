"""`topics export` and `topics import`: topics as JSON Lines, plain or gzip."""

from __future__ import annotations

import gzip
import io
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO, cast

import typer

from supervisor.cli.endpoint import ContextOption, PatienceOption, TokenOption, UrlOption, resolve
from supervisor.cli.quantities import counted
from supervisor.cli.remote import failures, tell_warnings
from supervisor.cli.terminal import JsonOption, Status, bar, complain, fail, say, size_option, tell
from supervisor.client import transfer
from supervisor.client.jsonlines import batches

PATIENCE_S = 60.0
CHUNK_BYTES = 4 << 20
GZIP_MAGIC = b"\x1f\x8b"


def export(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC|PATTERN", help="Names, or patterns like 'orders:*'.")],
    output: Annotated[
        str, typer.Option("-o", "--output", help="File; compressed if its name ends in .gz. - is standard output.")
    ] = "-",
    url: UrlOption = None,
    token: TokenOption = None,
    context: ContextOption = None,
    patience: PatienceOption = PATIENCE_S,
    as_json: JsonOption = False,
) -> None:
    """Write the records of topics as JSON Lines, while the service runs.

    A file gets its name once it is complete. Exit status: 0 done, 1 not possible, 2 wrong options, 3 the service is not
    reachable, 4 done, but records were lost before they could be read (each gap is reported, and in the file).
    """
    gaps = records = names = 0
    with _asking(url, token, context, patience) as client:
        chosen = transfer.chosen(client, topics)
        with _writing(output) as file, bar("exporting seqs", shown=not as_json) as advance:
            for found in transfer.export(client, chosen, file.write):
                if found["kind"] == "progress":
                    advance(found["done"], found["total"])
                elif found["kind"] == "gap":
                    gaps += 1
                    if "gap_from" in found:
                        what = f"seqs {found['gap_from']} to {found['gap_to']} are missing"
                    else:
                        what = "it is gone"
                    complain(f"{found['topic']}: {what} ({found['reason']})")
                else:
                    names += 1
                    records += found["records"]
                if as_json and output != "-":
                    say(found)
    if output != "-":
        done = {"kind": "done", "file": output, "topics": names, "records": records, "gaps": gaps}
        if as_json:
            say(done)
        else:
            tell(
                f"{output}: {counted(records, 'record')} of {counted(names, 'topic')}"
                + (f", {counted(gaps, 'gap')}" if gaps else "")
            )
    if gaps:
        raise typer.Exit(Status.GAPS)


def import_(
    source: Annotated[str, typer.Argument(metavar="FILE", help="JSON Lines, plain or gzip. - is standard input.")],
    topic: Annotated[str | None, typer.Option(help="Topic of all records; else each line names its topic.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Each line is the data of a record, any JSON value; needs --topic.")
    ] = False,
    skip: Annotated[int, typer.Option(min=0, help="Lines to skip: those that an interrupted import has done.")] = 0,
    batch_records: Annotated[int, typer.Option(min=1, help="Largest number of records in one write.")] = 1000,
    batch_bytes: Annotated[int, size_option("Approximate size limit of one write, e.g. 4MiB.")] = 4 << 20,
    config: Annotated[bool, typer.Option(help="Create missing topics as the file says; needs admin.")] = True,
    url: UrlOption = None,
    token: TokenOption = None,
    context: ContextOption = None,
    patience: PatienceOption = PATIENCE_S,
    as_json: JsonOption = False,
) -> None:
    """Append the records of a JSON Lines file. They get new seqs and times.

    May be repeated within the topics' idempotency_window_ms (2 minutes) without writing anything twice; later, with
    --skip. Exit status: 0 done, 1 not possible, 2 wrong options, 3 the service is not reachable.
    """
    if raw and topic is None:
        fail("--raw needs --topic", Status.USAGE)
    done = transfer.Done(lines=skip)
    with (
        _asking(url, token, context, patience) as client,
        _told_progress(done, source),
        _reading(source) as (file, size, place),
        bar("importing", of_bytes=True, shown=not as_json) as advance,
    ):
        parts = batches(_chunks(file, skip), topic, whole=raw, max_records=batch_records, max_bytes=batch_bytes)
        for _ in transfer.load(client, parts, done, configure=config):
            advance(place(), size)
    if done.gaps:
        complain(f"{source} tells of {counted(done.gaps, 'gap')}: records that were lost before they were exported")
    if as_json:
        say({"kind": "done", "file": source, **asdict(done)})
    else:
        again = f", of which {done.deduped:,} had been written before" if done.deduped else ""
        made = f", {counted(done.created, 'topic')} made" if done.created else ""
        tell(f"{source}: {counted(done.records, 'record')}{again}{made}")


@contextmanager
def _asking(url: str | None, token: str | None, context: str | None, patience_s: float) -> Iterator[transfer.Client]:
    """A client; errors become a sentence and an exit status."""
    endpoint = resolve(url, token, context)
    endpoint.client().close()  # ends the command if the URL is invalid
    tell_warnings()
    with failures(endpoint.url), transfer.connected(endpoint.url, endpoint.token, patience_s) as client:
        yield client


@contextmanager
def _told_progress(done: transfer.Done, source: str) -> Iterator[None]:
    """Context that says, before an error, what is done and how to continue."""
    try:
        yield
    except BaseException:
        if done.lines:
            on = f"topics import {source} --skip {done.lines} (and the same options)"
            complain(f"Done so far: {counted(done.lines, 'line')}. To go on: {on}")
        raise


@contextmanager
def _writing(output: str) -> Iterator[Any]:
    """Standard output, or a file that gets its name once it is complete and synced."""
    if output == "-":
        yield _Shown() if sys.stdout.isatty() else sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    target = Path(output)
    making = target.with_name(target.name + ".part")
    making.unlink(missing_ok=True)  # of an export that was killed, or a link or a file of another user
    try:
        with open(making, "xb", opener=_private) as file:
            if target.suffix == ".gz":
                with gzip.GzipFile("", "wb", 6, file, 0) as packed:
                    yield cast(BinaryIO, packed)
            else:
                yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(making, target)
    finally:
        making.unlink(missing_ok=True)


@contextmanager
def _reading(source: str) -> Iterator[tuple[BinaryIO, int | None, Any]]:
    """The decompressed content, the file's size in bytes (None if unknown), and a function for the position in it."""
    with ExitStack() as opened:
        file: Any = sys.stdin.buffer if source == "-" else opened.enter_context(open(source, "rb"))
        size = None if source == "-" else os.fstat(file.fileno()).st_size
        packed = file.peek(2)[:2] == GZIP_MAGIC
        content = io.BufferedReader(cast(Any, gzip.GzipFile(fileobj=file, mode="rb")), 1 << 20) if packed else file
        try:
            yield content, size, (lambda: 0) if size is None else file.tell
        except (EOFError, zlib.error) as error:
            raise OSError(f"{source}: {error}") from None


def _chunks(file: BinaryIO, skip: int) -> Iterator[tuple[int, list[bytes]]]:
    """Lines, about 4 MiB at a time, each time with the number of the first. Drops empty lines at the end."""
    number = 1
    while skip >= number and (passed := sum(1 for _ in islice(file, skip - number + 1))):
        number += passed
    lines = file.readlines(CHUNK_BYTES)
    while lines:
        following = file.readlines(CHUNK_BYTES)
        while not following and lines and not lines[-1].strip():
            del lines[-1]
        yield number, lines
        number += len(lines)
        lines = following


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class _Shown(io.RawIOBase):
    """Standard output if it is a terminal: lines of JSON that stay the same JSON."""

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        tell(*bytes(content).decode(errors="replace").removesuffix("\n").split("\n"))
        return len(content)
