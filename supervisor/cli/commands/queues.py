"""`topics queues`: depths, jobs and dead letters."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from supervisor.cli import exact
from supervisor.cli.commands.topics import TopicArgument, found
from supervisor.cli.remote import Remote, remote
from supervisor.cli.terminal import (
    HELP_OPTIONS,
    table,
    tell,
)

app = typer.Typer(
    help="""Depths and jobs of queues, and their dead letters.

    Exit status: 0 done, 1 refused, 2 wrong options, 3 the service is not reachable.
    """,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings=HELP_OPTIONS,
)
DEPTHS = {
    "topic": "queue",
    "ready": "ready",
    "in_flight": "in flight",
    "delayed": "delayed",
    "dead_lettering": "dead, on the way",
    "dead_lettered": "dead",
    "dead_letter": "to",
    "waits_for": "waits for",
}


@app.command("ls")
@remote()
async def list_queues(
    on: Remote,
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="A prefix, or a pattern like 'mail:*'.", show_default=False)
    ] = "",
) -> None:
    """List queues: jobs that are ready, in flight, delayed, or on the way to the dead letters; and all dead letters."""
    rows = []
    for each in await found(on, pattern):
        state: Any = await on.client.state(each["topic"], touch=False)
        if state.get("type") == "queue":
            counts = state["queue"]
            letters = state["config"].get("dead_letter")
            rows.append({"topic": each["topic"], "waits_for": None, **counts, "dead_letter": letters})
    on.print_rows(rows, DEPTHS)


@app.command()
@remote()
async def peek(
    on: Remote,
    queue: TopicArgument,
    most: Annotated[int, typer.Option("-n", "--most", min=1, max=1000, help="Number of jobs.")] = 20,
    first: Annotated[int | None, typer.Option("--from", metavar="SEQ", help="Begin at this seq.")] = None,
) -> None:
    """Look at jobs and their states without taking any."""
    jobs = await on.client.peek(queue, first_seq=first, max=most)
    if on.as_json:
        on.print_rows(jobs, {})
        return
    now = time.time() * 1000
    rows = []
    for job in jobs:
        until = job.get("deadline") or job.get("due")
        row = {"seq": job["$seq"], "state": job["state"], "deliveries": job["deliveries"], "tag": job.get("$tag") or ""}
        row |= {"for": "" if until is None else f"{max(until - now, 0) / 1000:.1f} s", "node": job.get("node") or ""}
        rows.append(row | {"data": exact.dumps(job["data"])})
    titles = ("seq", "state", "deliveries", "for", "node", "tag", "data")
    tell(table(rows, {name: name for name in titles}))


@app.command()
@remote()
async def redrive(
    on: Remote,
    letters: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic of dead letters.", show_default=False)],
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue they go back to.", show_default=False)],
    first: Annotated[int | None, typer.Option("--from", metavar="SEQ", help="The first of them.")] = None,
    last: Annotated[int | None, typer.Option("--to", metavar="SEQ", help="The last of them.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only those with this tag, or beginning so: 'a:*'.")] = None,
    most: Annotated[int | None, typer.Option("-n", "--most", min=1, help="No more than this.")] = None,
) -> None:
    """Send dead letters back to their queue."""
    match = None if tag is None else ("tag", "Glob", tag) if tag.endswith("*") else tag
    moved = 0
    while True:
        left = None if most is None else most - moved
        told = await on.client.redrive(letters, queue, first_seq=first, last_seq=last, match=match, max=left)
        moved += told["redriven"]
        first = told["next_seq"]
        if not told["more"] or moved == most:
            break
    on.print({"topic": letters, "queue": queue, "redriven": moved}, f"{queue}: {moved} dead letters are jobs again")
