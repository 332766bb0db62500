"""Export and import over the API: topics to lines, and lines to writes (`supervisor.client.jsonlines` has the format).

An export of a topic starts at its first live record. It ends after the last record that existed when the export began;
a few later records may be included. After retries of the client it continues at the same seq, so that no record is
left out or repeated. Records that the service lost before they were read become a `$gap` line and are reported.

An import writes one batch after the other. A batch without an answer is sent again, for `KEPT_S`, with its idempotency
key, which is derived from the line number and the content of its records. A whole file may therefore be imported again
without writing records twice, while the topic remembers the keys (`idempotency_window_ms`, 2 minutes by default). After
that, `skip` the lines that the interrupted import reported as done: the batches after them are the same as before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NoReturn

from anyio.from_thread import BlockingPortal, start_blocking_portal

from supervisor.client.jsonlines import Batch, Note, lines_of, note, page_of
from supervisor.client.python_client import KEPT_S, AsyncClient, TopicsError, segment
from supervisor.errors import SupervisorError

PAGE_RECORDS = 1000
PAGE_BYTES = 8 << 20
TOO_LARGE = ("payload_too_large", "batch_too_large")


class TransferError(SupervisorError):
    """The export or import cannot continue. The message says why."""


@dataclass(frozen=True, slots=True)
class Client:
    """The Python client for blocking code, with answers as they are. Its loop has a thread, so that Ctrl-C ends a read
    of standard input. Methods raise `TopicsError`."""

    portal: BlockingPortal
    client: AsyncClient

    def call(self, *request: Any, **options: Any) -> Any:
        """As `topics_client.connection.Connection.call`."""
        future = self.portal.start_task_soon(partial(self.client.connection.call, *request, **options))
        try:
            return future.result()
        finally:
            future.cancel()  # an interrupt ends the call, too

    def topics(self, prefix: str) -> Iterator[str]:
        yield from (each["topic"] for each in self.portal.call(self.client.topics, prefix))


@contextmanager
def connected(url: str, token: str | None, patience_s: float) -> Iterator[Client]:
    with start_blocking_portal() as portal:
        made = AsyncClient(url, token or "", patience_s=patience_s)
        with portal.wrap_async_context_manager(made) as client:
            yield Client(portal, client)


# Export


def chosen(client: Client, patterns: Iterable[str]) -> list[str]:
    """Sorted names of the topics that match the patterns. `*`, `?` and `[…]` are as in a shell.

    Raises `TransferError` for a pattern that matches no topic.
    """
    names: set[str] = set()
    for pattern in patterns:
        plain = pattern[: min((pattern.find(sign) for sign in "*?[" if sign in pattern), default=len(pattern))]
        if plain == pattern:
            found = {pattern} if _state(client, pattern) is not None else set()
        else:
            found = {name for name in client.topics(plain) if fnmatchcase(name, pattern)}
        if not found:
            raise TransferError(f"there is no topic {pattern}")
        names |= found
    return sorted(names)


def _answer(client: Client, method: str, path: str, *body: Any, **options: Any) -> bytes | None:
    """The answer as it is; None if there is no such topic."""
    try:
        raw: bytes = client.call(method, path, *body, **options, raw=True)
    except TopicsError as error:
        if error.status == 404:
            return None
        raise
    return raw


def _state(client: Client, topic: str) -> dict[str, Any] | None:
    raw = _answer(client, "GET", f"/v0/topics/{segment(topic)}", params={"touch": False})
    return None if raw is None else json.loads(raw)


def export(client: Client, topics: list[str], write: Callable[[bytes], Any]) -> Iterator[dict[str, Any]]:
    """Write all records of these topics as lines. Yields maps of kind `progress` (in seqs), `gap` for missing records,
    and `topic` when one is complete. Raises `TopicsError`.
    """
    states = {topic: state for topic in topics if (state := _state(client, topic)) is not None}
    for topic in topics:
        if topic not in states:
            yield {"kind": "gap", "topic": topic, "reason": "deleted"}
    total = sum(state["head_seq"] - state["earliest_seq"] + 1 for state in states.values())
    before = 0
    for topic, state in states.items():
        first, head = state["earliest_seq"], state["head_seq"]
        write(note(topic, "$topic", {name: state[name] for name in ("config", "earliest_seq", "head_seq")}))
        records = 0
        cursor = first - 1
        while cursor < head:
            question = {"from_seq": cursor, "limit": PAGE_RECORDS, "max_batch_bytes": PAGE_BYTES, "include_tags": True}
            raw = _answer(client, "POST", f"/v0/topics/{segment(topic)}/diff", question)
            if raw is None:
                gap = {"gap_from": cursor + 1, "gap_to": head, "reason": "deleted"}
                write(note(topic, "$gap", gap))
                yield {"kind": "gap", "topic": topic, **gap}
                break
            page = page_of(raw)
            if page.tombstone is not None:
                gap = {name: page.tombstone[name] for name in ("gap_from", "gap_to", "reason")}
                write(note(topic, "$gap", gap))
                yield {"kind": "gap", "topic": topic, **gap}
            write(lines_of(topic, page))
            records += len(page.records)
            if page.tombstone is not None and page.tombstone["reason"] == "recreated":
                head = page.head_seq  # continue with the recreated topic of this name
            if page.next_from_seq == cursor and page.caught_up:
                break
            cursor = page.next_from_seq
            done = before + min(max(cursor, first - 1), state["head_seq"]) - first + 1
            yield {"kind": "progress", "done": done, "total": total}
        before += state["head_seq"] - first + 1
        yield {"kind": "topic", "topic": topic, "records": records, "from_seq": first, "to_seq": cursor}


# Import


@dataclass(slots=True)
class Done:
    """Progress of an import. `lines` counts from the start of the file, skipped lines included."""

    lines: int = 0
    records: int = 0
    deduped: int = 0
    gaps: int = 0
    created: int = 0


def load(client: Client, parts: Iterable[Batch | Note], done: Done, *, configure: bool) -> Iterator[Done]:
    """Write the batches of `jsonlines.batches` and count them in `done`, which is yielded after each step. With
    `configure`, missing topics are created as the file says.

    Raises `TopicsError`, `TransferError` and `LineError`; `done` then has the progress.
    """
    known: set[str] = set()
    for part in parts:
        if isinstance(part, Note):
            if part.kind == "$gap":
                done.gaps += 1
            elif configure and part.topic not in known:
                done.created += _configure(client, part)
                known.add(part.topic)
            done.lines = part.number
        else:
            _write(client, part, done)
        yield done


def _configure(client: Client, part: Note) -> int:
    """Create the topic if it is missing. Returns 1 if it was created, else 0."""
    config = part.content.get("config")
    if not isinstance(config, dict) or _state(client, part.topic) is not None:
        return 0
    try:
        client.call("PUT", f"/v0/topics/{segment(part.topic)}", json.dumps(config).encode())
    except TopicsError as error:
        remedy = "; give a token that may (admin), or leave it out with --no-config" if error.status == 403 else ""
        _refused(f"line {part.number}: making the topic {part.topic}", error, remedy)
    return 1


def _write(client: Client, batch: Batch, done: Done) -> None:
    path = f"/v0/topics/{segment(batch.topic)}"
    try:
        answer = client.call("POST", path, batch.body(), params={"return_seqs": False}, within_s=KEPT_S)
    except TopicsError as error:
        if error.code in TOO_LARGE and len(batch.lines) > 1:
            # The halves are the same at every attempt, so their keys are too.
            for half in batch.halves():
                _write(client, half, done)
            return
        _refused(f"lines {batch.number} to {batch.last}", error)
    done.lines = batch.last
    done.records += len(batch.lines)
    if answer["deduped"]:
        done.deduped += len(batch.lines)


def _refused(what: str, error: TopicsError, remedy: str = "") -> NoReturn:
    """Say what was refused. An error that may pass later stays what it is."""
    if error.transient:
        raise error
    raise TransferError(f"{what}: the service answered {error.status} {error.code}: {error.message}{remedy}") from error
