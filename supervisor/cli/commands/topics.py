"""`topics ls`, `show`, `create` and `rm`."""

from __future__ import annotations

import fnmatch
from typing import Annotated, Any

import typer

from supervisor.cli import exact
from supervisor.cli.completers import topic_names
from supervisor.cli.quantities import counted, described
from supervisor.cli.remote import Remote, remote
from supervisor.cli.terminal import Status, confirmed, duration_option, fail, size_option, table, tell
from supervisor.client.python_client import TopicNotFound

TITLES = {"topic": "topic", "count": "records", "bytes": "bytes", "head_seq": "head", "note": ""}
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=topic_names)]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@remote()
async def ls(
    on: Remote,
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="A prefix, or a pattern like 'orders:*'.")] = "",
) -> None:
    """List topics: records, bytes and the seq of the last one.

    Exit status: 0 done, 1 refused, 2 wrong options, 3 the service is not reachable.
    """
    rows = [dict(each) for each in await found(on, pattern)]
    for row in rows if not on.as_json else ():
        row["note"] = "damaged" if row.get("quarantined") else ""
    on.print_rows(rows, TITLES)


async def found(on: Remote, pattern: str) -> list[Any]:
    """The topics with a prefix, or those that a pattern matches."""
    prefix = pattern.partition("*")[0].partition("?")[0].partition("[")[0]
    listed = await on.client.topics(prefix or None)
    return listed if prefix == pattern else [each for each in listed if fnmatch.fnmatchcase(each["topic"], pattern)]


@remote()
async def show(on: Remote, topic: TopicArgument) -> None:
    """Show a topic with its configuration, cursors and routers.

    Exit status: 0 done, 1 refused, or there is no such topic, 2 wrong options, 3 the service is not reachable.
    """
    client = on.client
    state: dict[str, Any] = dict(await client.state(topic, touch=False))
    state.pop("performance", None)
    cursors = [dict(each) for each in await client.cursors(topic)]
    routers = [dict(each) for each in [*await client.routers(source=topic), *await client.routers(dest=topic)]]
    if on.as_json:
        on.print({**state, "cursors": cursors, "routers": routers})
        return
    config, queue = state.pop("config"), state.pop("queue", {})
    for label, text in map(described, *zip(*[*state.items(), *queue.items()], strict=True)):
        tell(f"{label + ':':<21}{text}")
    tell("config:")
    for label, text in map(described, *zip(*config.items(), strict=True)):
        tell(f"  {label + ':':<23}{text}")
    for rows, names in (
        (cursors, ("cursor", "seq", "lag")),
        (routers, ("router", "source", "dest", "forwarded_total")),
    ):
        if rows:
            tell("", table(rows, names))


@remote()
async def create(
    on: Remote,
    topic: TopicArgument,
    queue: Annotated[bool, typer.Option("--queue", help="A queue of jobs. The type stays.")] = False,
    durability: Annotated[str | None, typer.Option(help="ephemeral, memory, disk or fsync.")] = None,
    ttl: Annotated[int | None, duration_option("Age at which records expire; 0: never.")] = None,
    cap_records: Annotated[int | None, typer.Option(min=0, help="Largest number of records; 0: no limit.")] = None,
    cap_bytes: Annotated[int | None, size_option("Largest size of all records.")] = None,
    discard: Annotated[str | None, typer.Option(help="At a cap: old, or reject writes.")] = None,
    lease: Annotated[int | None, duration_option("Lease of a job.")] = None,
    max_deliveries: Annotated[int | None, typer.Option(min=0, help="Then a job is a dead letter.")] = None,
    dead_letter: Annotated[str | None, typer.Option(help="The topic of dead letters.")] = None,
    fields: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=JSON", help="Any field of the configuration.")
    ] = None,
) -> None:
    """Create a topic, or change the configuration of one: the fields that are named.

    Exit status: 0 done, 1 refused, 2 wrong options, 3 the service is not reachable.
    """
    named = {"durability": durability, "ttl_ms": ttl, "cap_records": cap_records, "cap_bytes": cap_bytes}
    named |= {"discard": discard, "lease_ms": lease, "max_deliveries": max_deliveries, "dead_letter": dead_letter}
    config: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    config |= {"type": "queue"} if queue else {}
    config |= dict(_field(each) for each in fields or [])
    try:
        before: Any = await on.client.state(topic, touch=False)
    except TopicNotFound:
        before = None
    now = await on.client.configure(topic, **config)
    made = before is None
    changed = [name for name, value in now.items() if before is not None and before["config"].get(name) != value]
    text = "created" if made else f"changed: {', '.join(changed)}" if changed else "is there already, nothing changed"
    on.print({"topic": topic, "created": made, "config": now}, f"{topic}: {text}")


def _field(given: str) -> tuple[str, Any]:
    name, equals, value = given.partition("=")
    if not equals or not name.isidentifier():
        raise typer.BadParameter(f"--set {given} must be FIELD=JSON, such as priority=5")
    try:
        return name, exact.loads(value)
    except ValueError:
        return name, value


@remote()
async def rm(
    on: Remote,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", autocompletion=topic_names)],
    before: Annotated[int | None, typer.Option(metavar="SEQ", help="Only records below this seq.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only records with this tag, or beginning so: 'customer:*'.")] = None,
    if_empty: Annotated[bool, typer.Option("--if-empty", help="Only if it has no records.")] = False,
    yes: YesOption = False,
) -> None:
    """Delete topics, or some of the records of one. Asks before.

    Exit status: 0 done, or it was not there, 1 refused, 2 wrong options, 3 the service is not reachable.
    """
    names = ", ".join(topics)
    if before is not None or tag is not None:
        if len(topics) > 1 or if_empty:
            fail("--before and --tag are for the records of one topic, without --if-empty", Status.USAGE)
        which = [f"below {before}"] * (before is not None) + [f"with tag {tag}"] * (tag is not None)
        if confirmed(f"Delete the records of {names} {' and '.join(which)}?", yes):
            match = None if tag is None else ("tag", "Glob", tag) if tag.endswith("*") else tag
            deleted = await on.client.delete_records(topics[0], before_seq=before, match=match)
            on.print({"topic": topics[0], "records": deleted}, f"{names}: {counted(deleted, 'record')} deleted")
        return
    if not if_empty and not confirmed(f"Delete {names} and all records?", yes):
        return
    for topic in topics:
        gone = await on.client.delete_topic(topic, if_empty=if_empty)
        on.print({"topic": topic, "deleted": gone}, f"{topic}: {'deleted' if gone else 'is not there'}")
