"""`topics publish`: appends records from arguments, or from lines of standard input as they come."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Annotated, Any

import anyio
import msgspec
import typer

from supervisor.cli.completers import topic_names
from supervisor.cli.quantities import counted
from supervisor.cli.remote import Remote, remote
from supervisor.cli.terminal import Status, bar, complain, duration_option, fail
from supervisor.client.python_client import Json, NewRecord, Published, Publisher

PATIENCE_S = 60.0
LINGER_S = 0.1
"""How long a line waits for others before it is sent."""
CHUNK = 1 << 20
STANDARD_INPUT = "-"
SHOWN = 1000
"""Lines between two looks at the progress."""
_JSON_BEGINS = ("{", "[", '"')
_FORMS = "lines are JSON, with --records objects that have data, with --text any text"


_NULL, _NONE = msgspec.Raw(b"null"), msgspec.Raw()


class Line(msgspec.Struct):
    """A line of --records: fields of a record. Others, such as the seq that `read --json` prints, are passed over.

    `read --json` also prints lines with a `gap` and no `data`, for records that are lost.
    """

    data: msgspec.Raw = _NONE
    gap: msgspec.Raw = _NONE
    tag: str | None = None
    node: str | None = None
    meta: msgspec.Raw = _NULL
    delay_ms: int | None = None


DataArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="DATA", help="A record each: JSON, else text. Without any, or with - alone: lines of standard input."
    ),
]
_line = msgspec.json.Decoder(Line).decode
_any = msgspec.json.Decoder(msgspec.Raw).decode


@remote(PATIENCE_S)
async def publish(
    on: Remote,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Made if there is none.", autocompletion=topic_names)],
    data: DataArgument = None,
    text: Annotated[bool, typer.Option("--text", help="Arguments or lines are text, not JSON.")] = False,
    records: Annotated[
        bool, typer.Option("--records", help="Lines are records, with data, tag, meta, node and delay_ms.")
    ] = False,
    tag: Annotated[str | None, typer.Option(help="Tag of all records.")] = None,
    node: Annotated[
        str | None, typer.Option(help="Name of the writer; its own reads can leave these records out.")
    ] = None,
    meta: Annotated[str | None, typer.Option(help="A JSON object beside the data of all records.")] = None,
    delay: Annotated[int | None, duration_option("Hold jobs of a queue back for so long.")] = None,
    key: Annotated[
        str | None, typer.Option(help="Idempotency key: the same publish with the same key is written once.")
    ] = None,
    create: Annotated[bool, typer.Option(help="Make the topic if there is none.")] = True,
    batch_records: Annotated[int, typer.Option(min=1, max=10_000, help="Largest number of records in a write.")] = 1000,
) -> None:
    """Append records: from arguments, or JSON Lines from a pipe.

    Lines are sent as they come, in batches, and each batch is written once, whatever happens to connections. Exit
    status: 0 all records are acknowledged, 1 refused, or a line is not JSON, 2 wrong options, 3 the service is not
    reachable.
    """
    if data == [STANDARD_INPUT] and not text:
        data = None
    if records and (data or text):
        fail(
            "--records is for lines of standard input that are JSON objects; leave --text and arguments out",
            Status.USAGE,
        )
    options = {"tag": tag, "meta": None if meta is None else parsed_meta(meta), "delay_ms": delay}
    fields: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    made = None if create else False
    if data:
        rows = [NewRecord(parsed(each, text=text), **fields) for each in data]
        done = await on.client.publish(topic, records=rows, node=node, create=made, idempotency_key=key)
        _tell(on, topic, done)
        return
    if key is not None:
        fail("--key is for records that are arguments; lines of standard input have keys of their own", Status.USAGE)
    publisher = on.client.publisher(topic, node=node, create=made, batch_records=batch_records, linger_s=LINGER_S)
    await _publish_lines(on, publisher, lambda line: _record(line, records=records, text=text), fields)


async def _publish_lines(
    on: Remote, publisher: Publisher, record: Callable[[bytes], dict[str, Any]], fields: dict[str, Any]
) -> None:
    """`record` makes arguments of `Publisher.send` of a line, and nothing of one to pass over; `fields` are of all."""
    with bar("publishing", shown=not on.as_json) as advance:
        try:
            async with publisher:
                async for number, line in _lines():
                    try:
                        found = record(line)
                    except (msgspec.DecodeError, UnicodeDecodeError) as error:
                        raise ValueError(f"line {number} is not what it should be: {_plain(error)}; {_FORMS}") from None
                    if found:
                        await publisher.send(**(found | fields))
                    else:
                        complain(f"line {number} is a gap, and is passed over")
                    if number % SHOWN == 0:
                        advance(publisher.published, None)
        except BaseException:
            if publisher.published:
                were = "was" if publisher.published == 1 else "were"
                complain(f"{counted(publisher.published, 'record')} {were} published")
            raise
    _tell(on, publisher.topic, publisher.done)


def _tell(on: Remote, topic: str, done: Published | None) -> None:
    if done is None:
        on.print({"topic": topic, "count": 0}, f"{topic}: nothing to publish")
        return
    found = {name: getattr(done, name) for name in ("topic", "count", "first_seq", "last_seq", "created", "deduped")}
    seqs = f"seq {done.last_seq}" if done.count == 1 else f"seqs {done.first_seq} to {done.last_seq}"
    notes = ", topic made" * done.created + ", written before" * done.deduped
    on.print(found, f"{topic}: {counted(done.count, 'record')}, {seqs}{notes}")


def parsed(given: str, *, text: bool) -> Any:
    """An argument as data: text that looks like JSON must be JSON. Ends the command if it is not."""
    if text:
        return given
    try:
        return Json(_any(given.encode()))
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        if given.lstrip().startswith(_JSON_BEGINS):
            fail(f"{given} is not JSON: {_plain(error)}; --text sends it as text", Status.USAGE)
        return given


def parsed_meta(given: str) -> Json:
    """--meta as it is. Ends the command if it is no JSON object."""
    try:
        msgspec.json.decode(given, type=dict[str, Any])
    except msgspec.DecodeError as error:
        fail(f"--meta {given} is not a JSON object: {_plain(error)}", Status.USAGE)
    return Json(given.encode())


def _record(line: bytes, *, records: bool, text: bool) -> dict[str, Any]:
    """A line as the arguments of `Publisher.send`; none for a gap.

    Raises `msgspec.DecodeError`, `UnicodeDecodeError`.
    """
    if text:
        return {"data": line.decode()}
    if not records:
        return {"data": Json(_any(line))}
    found = _line(line)
    if not bytes(found.data):
        if not bytes(found.gap):
            raise msgspec.ValidationError("Object missing required field `data`")
        return {}
    meta = Json(found.meta) if bytes(found.meta) != bytes(_NULL) else None
    fields = {"data": Json(found.data), "tag": found.tag, "node": found.node, "meta": meta, "delay_ms": found.delay_ms}
    return {name: value for name, value in fields.items() if value is not None}


def _plain(error: Exception) -> str:
    return str(error).removeprefix("JSON is malformed: ")


async def _lines() -> AsyncIterator[tuple[int, bytes]]:
    """Lines of standard input as they come, with their numbers, without empty ones."""
    if sys.stdin.isatty():
        complain("reading lines from the terminal; Ctrl-D ends")
    number, rest, ended = 0, b"", False
    while not ended:
        chunk = await _read()
        ended = not chunk
        *lines, rest = (rest + chunk).split(b"\n")
        for line in [*lines, rest] if ended else lines:
            number += 1
            if line.strip():
                yield number, line


async def _read() -> bytes:
    with suppress(PermissionError):  # a file, which is always readable
        await anyio.wait_readable(sys.stdin)
    return os.read(sys.stdin.fileno(), CHUNK)
