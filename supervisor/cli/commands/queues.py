"""`topics queues`: depths, jobs and dead letters."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from supervisor.cli import exact
from supervisor.cli.commands.topics import TopicArgument, found
from supervisor.cli.quantities import counted
from supervisor.cli.remote import Remote, remote
from supervisor.cli.terminal import group, table, tell
from supervisor.client.python_client import Forbidden, NotAQueue, Record, TopicNotFound

app = group(
    """Depths and jobs of queues, and their dead letters.

    Exit status: 0 done, 1 refused, 2 wrong options, 3 the service is not reachable.
    """
)
FROM, DELIVERIES, REASON = "$dead_letter_from", "$dead_letter_deliveries", "$dead_letter_reason"
"""Members of the `meta` of a dead letter."""
DEPTHS = {
    "topic": "queue",
    "ready": "ready",
    "in_flight": "in flight",
    "delayed": "delayed",
    "dead_lettering": "dead, on the way",
    "dead_lettered": "dead so far",
    "dead_letters": "dead now",
    "dead_letter": "in",
    "waits_for": "waits for",
}


@app.command("ls")
@remote()
async def list_queues(
    on: Remote,
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="A prefix, or a pattern like 'mail:*'.")] = "",
) -> None:
    """List queues: jobs that are ready, in flight, delayed, or on the way to the dead letters; all dead letters so far,
    and how many records their topic has now."""
    rows = []
    present: dict[str | None, int | None] = {None: None}
    for each in await found(on, pattern):
        state: Any = await on.client.state(each["topic"], touch=False)
        if state.get("type") == "queue":
            counts = state["queue"]
            letters = state["config"].get("dead_letter")
            if letters not in present:
                present[letters] = await _count(on, letters)
            row = {"topic": each["topic"], "waits_for": None, **counts, "dead_letters": present[letters]}
            rows.append(row | {"dead_letter": letters})
    on.print_rows(rows, DEPTHS)


async def _count(on: Remote, topic: str) -> int | None:
    """Number of records of a topic; 0 if there is none, None if the key may not look."""
    try:
        return (await on.client.state(topic, touch=False))["count"]
    except TopicNotFound:
        return 0
    except Forbidden:
        return None


@app.command()
@remote()
async def peek(
    on: Remote,
    queue: TopicArgument,
    most: Annotated[int, typer.Option("-n", "--most", min=1, max=1000, help="Number of jobs.")] = 20,
    first: Annotated[int | None, typer.Option("--from", metavar="SEQ", help="Begin at this seq.")] = None,
) -> None:
    """Look at jobs and their states without taking any, or at the dead letters of a topic that is no queue."""
    try:
        jobs = await on.client.peek(queue, first_seq=first, max=most)
    except NotAQueue as error:
        await _peek_letters(on, queue, first, most, error)
        return
    if on.as_json:
        on.print_rows(jobs, {})
        return
    now = time.time() * 1000
    rows = []
    for job in jobs:
        until = job.get("deadline") or job.get("due")
        row = {"seq": job["$seq"], "state": job["state"], "deliveries": job["deliveries"], "tag": job.get("$tag") or ""}
        row |= {"for": "" if until is None else f"{max(until - now, 0) / 1000:.1f} s", "node": job.get("node") or ""}
        reason = job.get("reason") or (job.get("meta") or {}).get(REASON) or ""
        rows.append(row | {"reason": reason, "data": exact.dumps(job["data"])})
    tell(table(rows, ("seq", "state", "deliveries", "for", "node", "tag", "reason", "data")))


async def _peek_letters(on: Remote, topic: str, first: int | None, most: int, error: NotAQueue) -> None:
    """Print the dead letters among the records of a topic that is no queue. Raises `error` if there are others only."""
    rows: list[dict[str, Any]] = []
    others = False
    async for each in on.client.read(topic, from_seq=max((first or 0) - 1, 0), limit=most, gaps="yield"):
        if isinstance(each, Record):
            meta = each.meta if isinstance(each.meta, dict) else {}
            if FROM not in meta:
                others = True
                continue
            told = {"queue": meta.get(FROM), "deliveries": meta.get(DELIVERIES), "reason": meta.get(REASON)}
            rows.append({"seq": each.seq, **told, "tag": each.tag, "data": each.data})
        if len(rows) == most:
            break
    if others and not rows:
        raise error
    if on.as_json:
        on.print_rows(rows, {})
        return
    for row in rows:
        row["data"] = exact.dumps(row["data"])
    tell(table(rows, ("seq", "queue", "deliveries", "tag", "reason", "data")))


@app.command()
@remote()
async def redrive(
    on: Remote,
    letters: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic of dead letters.")],
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue they go back to.")],
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
    again = "is a job again" if moved == 1 else "are jobs again"
    on.print({"topic": letters, "queue": queue, "redriven": moved}, f"{queue}: {counted(moved, 'dead letter')} {again}")
