"""`topics cursors`: named cursors."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from supervisor.cli.commands.topics import TopicArgument
from supervisor.cli.remote import Remote, remote
from supervisor.cli.terminal import group

app = group(
    """Named cursors: positions in a topic that the service keeps.

    Exit status: 0 done, 1 refused, 2 wrong options, 3 the service is not reachable.
    """
)
NameArgument = Annotated[str, typer.Argument(metavar="CURSOR")]


@app.command("ls")
@remote()
async def list_cursors(on: Remote, topic: TopicArgument) -> None:
    """List the cursors of a topic: position, and how far behind the head it is."""
    rows: list[Any] = list(await on.client.cursors(topic))
    on.print_rows(rows, {"cursor": "cursor", "seq": "seq", "lag": "lag"})


@app.command("set")
@remote()
async def set_cursor(
    on: Remote,
    topic: TopicArgument,
    name: NameArgument,
    seq: Annotated[int, typer.Argument(metavar="SEQ", min=0, help="The last seq that is done.")],
    force: Annotated[bool, typer.Option("--force", help="Also backwards.")] = False,
) -> None:
    """Move a cursor, or make one."""
    state: Any = await on.client.set_cursor(topic, name, seq, force=force)
    note = "" if state["seq"] == seq else "; it moves back only with --force"
    on.print(state, f"{topic}: {name} is at {state['seq']}, {state.get('lag', 0)} behind the head{note}")


@app.command("rm")
@remote()
async def remove(on: Remote, topic: TopicArgument, name: NameArgument) -> None:
    """Delete a cursor."""
    gone = await on.client.delete_cursor(topic, name)
    on.print({"topic": topic, "cursor": name, "deleted": gone}, f"{name}: {'deleted' if gone else 'is not there'}")
