"""`topics read` and `topics tail`: print records, those there are and those to come."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from supervisor.cli.commands.reading import Printer, chosen
from supervisor.cli.completers import topic_names
from supervisor.cli.remote import Remote, remote
from supervisor.cli.terminal import Status, duration_option, fail

PATIENCE_S = 60.0
MOST = 10_000
"""Records of a page."""
LAST = 10
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=topic_names)]
FromOption = Annotated[
    int | None, typer.Option("--from", metavar="SEQ", min=0, help="Start after this seq (0 = start).")
]
CursorOption = Annotated[str | None, typer.Option(help="Start after this named cursor.")]
TagOption = Annotated[str | None, typer.Option(help="Only records whose tag matches, such as 'customer:*'.")]
GrepOption = Annotated[str | None, typer.Option(help="Only records whose data, as JSON, matches this expression.")]
WhereOption = Annotated[
    list[str] | None,
    typer.Option(metavar="PATH=VALUE", help="Only records with this value in their data: customer.id=42."),
]
NodeOption = Annotated[str | None, typer.Option(help="Leave out records of this node.")]
DataOption = Annotated[bool, typer.Option("--data", help="Print the data alone, a JSON value a line.")]


@remote(PATIENCE_S)
async def read(
    on: Remote,
    topic: TopicArgument,
    from_seq: FromOption = None,
    cursor: CursorOption = None,
    commit: Annotated[bool, typer.Option("--commit", help="Move the cursor after the last printed record.")] = False,
    most: Annotated[int | None, typer.Option("-n", "--most", min=1, help="Print no more records than this.")] = None,
    wait: Annotated[int, duration_option("At the end, wait so long for more.")] = 0,
    tag: TagOption = None,
    grep: GrepOption = None,
    where: WhereOption = None,
    node: NodeOption = None,
    data_only: DataOption = False,
) -> None:
    """Print the records of a topic, to its end.

    Exit status: 0 done, 1 refused, 2 wrong options, 3 the service is not reachable, 4 done, but records were lost
    before they could be read (each gap is reported).
    """
    if from_seq is not None and cursor is not None:
        fail("--from and --cursor both say where to begin; give one of them", Status.USAGE)
    if commit and cursor is None:
        fail("--commit needs --cursor", Status.USAGE)
    printer = Printer(chosen(tag, grep, where), as_json=on.as_json, data_only=data_only, several=False)
    limit = min(most or MOST, MOST)
    reading = on.client.read(
        topic, from_seq=from_seq or 0, cursor=cursor, limit=limit, wait_ms=wait, node=node, gaps="yield"
    )
    printed, seq = 0, None
    async for item in reading:
        printed += printer.item(item)
        seq = item.seq
        if printed == most:
            break
    sys.stdout.flush()
    if commit and cursor is not None and seq is not None:
        await on.client.set_cursor(topic, cursor, seq)
    if printer.gaps:
        raise typer.Exit(Status.GAPS)


@remote(endless=True)
async def tail(
    on: Remote,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", autocompletion=topic_names)],
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Follow the topics until Ctrl-C.")] = False,
    last: Annotated[int, typer.Option("-n", "--last", min=0, help="Begin with about so many last records.")] = LAST,
    from_seq: FromOption = None,
    cursor: Annotated[str | None, typer.Option(help="With -f: begin behind this cursor, and move it on.")] = None,
    tag: TagOption = None,
    grep: GrepOption = None,
    where: WhereOption = None,
    node: NodeOption = None,
    data_only: DataOption = False,
) -> None:
    """Print the last records of topics; with -f, also those to come.

    With -f, a tail resumes automatically after the service was away. Exit status: 0 done, or ended by Ctrl-C, 1
    refused, 2 wrong options, 3 the service is not reachable, 4 done without -f, but records were lost.
    """
    if cursor is not None and not follow:
        fail("--cursor needs -f; `topics read` has --cursor, too", Status.USAGE)
    begins = {topic: await _begin(on, topic, from_seq, last) for topic in topics}
    printer = Printer(chosen(tag, grep, where), as_json=on.as_json, data_only=data_only, several=len(begins) > 1)
    if follow:
        async with on.client.tail(begins, cursor=cursor, node=node, gaps="yield") as items:
            async for item in items:
                printer.item(item)
                sys.stdout.flush()
        return
    for topic, seq in begins.items():
        async for found in on.client.read(topic, from_seq=seq, node=node, gaps="yield"):
            printer.item(found)
    if printer.gaps:
        raise typer.Exit(Status.GAPS)


async def _begin(on: Remote, topic: str, from_seq: int | None, last: int) -> int:
    """The seq behind which a tail of a topic begins."""
    if from_seq is not None:
        return from_seq
    state = await on.client.state(topic, touch=False)
    return max(state["head_seq"] - last, state["earliest_seq"] - 1, 0)
