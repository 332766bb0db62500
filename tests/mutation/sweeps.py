"""The sweeps: every mutation of the examples of a table, sent into a scene."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

import msgspec

from gateway.contract.operation import Operation
from gateway.contract.operations import OPERATIONS
from gateway.streams.event_ids import mark
from tests.mutation import values
from tests.mutation.examples import EXAMPLES, SESSION, Example
from tests.mutation.scene import Scene, target_of

BY_NAME = {operation.name: operation for operation in OPERATIONS}


def some(made: Iterable[bytes], random: Random, most: int) -> list[bytes]:
    """At most so many of the mutations, in their order."""
    whole = list(made)
    return [whole[index] for index in sorted(random.sample(range(len(whole)), min(len(whole), most)))]


def examples() -> Iterator[tuple[Operation, Example]]:
    for operation in OPERATIONS:
        for example in EXAMPLES[operation.name]:
            yield operation, example


def _headers(example: Example) -> dict[bytes, bytes]:
    return {name.encode(): value.encode() for name, value in example.headers.items()}


def _body(example: Example) -> bytes | None:
    return None if example.body is None else json.dumps(example.body).encode()


async def whole(scene: Scene, operation: Operation, example: Example) -> list[int]:
    """Send an example as it is, twice; return the statuses."""
    before = scene.judge.statuses.copy()

    def write(_: bytes, session: bytes) -> bytes:
        target = target_of(operation, example, session)
        return scene.request(operation.method, target, _body(example), _headers(example))

    await scene.sent(operation, example, [b"", b""], write)
    return [status for status, count in scene.judge.statuses.items() if count > before.get(status, 0)]


async def bodies(scene: Scene, operation: Operation, example: Example, made: Iterable[bytes]) -> None:
    def write(body: bytes, session: bytes) -> bytes:
        return scene.request(operation.method, target_of(operation, example, session), body, _headers(example))

    await scene.sent(operation, example, made, write)


def queries(operation: Operation, example: Example) -> Iterator[bytes]:
    """Each parameter with each awkward value, twice, and bent names."""
    for param in operation.query:
        name = param.name.encode()
        others = b"&".join(
            pair for pair in example.query.encode().split(b"&") if pair and not pair.startswith(name + b"=")
        )
        for word in values.WORDS:
            yield b"%b=%b&%b" % (name, word, others)
        yield b"%b=1&%b=2" % (name, name)
        yield b"%b&%b" % (name, others)
    for word in values.WORDS:
        yield word
        yield b"%b=1" % word
    yield b"&" * 200


async def in_queries(scene: Scene, operation: Operation, example: Example, made: Iterable[bytes]) -> None:
    def write(query: bytes, session: bytes) -> bytes:
        path = target_of(operation, example, session).partition(b"?")[0]
        return scene.request(operation.method, b"%b?%b" % (path, query), _body(example), _headers(example))

    await scene.sent(operation, example, made, write)


def paths(operation: Operation, example: Example) -> Iterator[bytes]:
    """The path with each awkward value in place of each name in it, and behind it."""
    whole_path = target_of(operation, example).partition(b"?")[0]
    for value in example.values:
        for word in values.WORDS:
            yield whole_path.replace(value.encode(), word, 1)
    for word in values.WORDS:
        yield b"%b/%b" % (whole_path, word)


async def in_paths(scene: Scene, operation: Operation, example: Example, made: Iterable[bytes]) -> None:
    def write(path: bytes, session: bytes) -> bytes:
        target = path.replace(SESSION.encode(), session) + b"?" * bool(example.query) + example.query.encode()
        return scene.request(operation.method, target, _body(example), _headers(example))

    await scene.sent(operation, example, made, write)


def headers(random: Random, each: int) -> Iterator[bytes]:
    """Lines of headers: each header with some of the awkward values."""
    for name in values.HEADERS:
        for value in random.sample(values.HEADER_VALUES, min(each, len(values.HEADER_VALUES))):
            yield b"%b: %b" % (name, value)


async def in_headers(scene: Scene, operation: Operation, example: Example, made: Iterable[bytes]) -> None:
    def write(line: bytes, session: bytes) -> bytes:
        name, _, value = line.partition(b": ")
        return scene.request(
            operation.method, target_of(operation, example, session), _body(example), {**_headers(example), name: value}
        )

    await scene.sent(operation, example, made, write)


async def in_heads(scene: Scene, operation: Operation, example: Example, random: Random, rounds: int) -> None:
    """Edit the bytes of heads. Nothing follows them on their connection."""

    def write(_: bytes, session: bytes) -> bytes:
        raw = scene.request(operation.method, target_of(operation, example, session), _body(example), _headers(example))
        head, _, body = raw.partition(b"\r\n\r\n")
        return values.edited(head, random, b"\r\n\t :;,=%?#/&\x00\x7f\x80\xff019aZ") + b"\r\n\r\n" + body

    await scene.sent(operation, example, [b""] * rounds, write, end=True)


async def heads(scene: Scene, operation: Operation, example: Example, random: Random, rounds: int) -> None:
    """Mutations of one example but those of its body. Of streams and large answers, which take longest, few."""
    most = rounds if operation.streams or operation.always else 3 * rounds
    await in_queries(scene, operation, example, some(queries(operation, example), random, most))
    await in_paths(scene, operation, example, some(paths(operation, example), random, most))
    await in_headers(scene, operation, example, headers(random, 1 + rounds // 50))
    await in_heads(scene, operation, example, random, 5 + rounds // 10)


async def requests(scene: Scene, operation: Operation, example: Example, random: Random, rounds: int) -> None:
    """Every mutation of one example."""
    if operation.request is not None:
        await bodies(scene, operation, example, values.bodies(example.body, random, rounds))
    await heads(scene, operation, example, random, rounds)


async def framings(scene: Scene, random: Random, rounds: int) -> None:
    """Bodies that are compressed or in chunks, with the bytes of either mutated."""
    operation, example = BY_NAME["append"], EXAMPLES["append"][0]
    target, plain = target_of(operation, example), _body(example)
    assert plain is not None
    packed = gzip.compress(plain, mtime=0)
    packs = [packed, packed + packed, *values.cuts(packed), gzip.compress(b" " * (2 << 20)), b"\x1f\x8b\x08\xff" * 9]
    packs += [values.edited(packed, random, bytes(range(256))) for _ in range(rounds)]

    def compressed(body: bytes, _: bytes) -> bytes:
        return scene.request(operation.method, target, body, {b"Content-Encoding": b"gzip"})

    await scene.sent(operation, example, packs, compressed)
    chunks = b"9;a=b\r\n%b\r\n%x\r\n%b\r\n0\r\nA: b\r\n\r\n" % (plain[:9], len(plain) - 9, plain[9:])

    def chunked(body: bytes, _: bytes) -> bytes:
        head = {b"Content-Type": b"application/json", b"Transfer-Encoding": b"chunked"}
        return scene.request(operation.method, target, None, head) + body

    edits = (values.edited(chunks, random, b"\r\n;= 0123456789abcdefg-+\x00\xff") for _ in range(rounds))
    await scene.sent(operation, example, (chunks, *values.cuts(chunks), *edits), chunked, end=True)


# What the service gives out and gets back


def _base64(raw: bytes) -> bytes:
    return base64.urlsafe_b64encode(raw).rstrip(b"=")


def cursors(random: Random, rounds: int) -> Iterator[bytes]:
    """Cursors of lists, forged."""
    real = {"after": "m-log"}
    for text in values.bodies(real, random, rounds):
        yield _base64(text)
    yield from values.WORDS


_PACKED: tuple[Any, ...] = (
    *(edge for edge in values.EDGES if -(2**63) <= edge < 2**64),
    None,
    True,
    1.5,
    float("nan"),
    float("inf"),
    "",
    "a",
    b"",
    b"\xff" * 6,
    b"\x00" * 7,
    [],
    [[]],
    {},
    {"a": 1},
    "x" * 3000,
    [1] * 3000,
)


def event_ids(random: Random, rounds: int) -> Iterator[bytes]:
    """Ids of events, forged: as a map of names, and as both kinds of tokens."""
    for text in values.bodies({"m-log": 1, "$generation": 0, "m-copy": 2}, random, rounds):
        yield _base64(text)
    pack = msgspec.msgpack.encode
    whole_list: list[Any] = [0, 1]
    marked: list[Any] = [0, mark("m-log") + mark("m-copy"), [1, 2]]
    for form, real in ((b"c.", whole_list), (b"p.", marked)):
        yield form + _base64(pack(real))
        for at in values.places(real):
            for awkward in _PACKED:
                yield form + _base64(pack(values.put(real, at, awkward)))
        for text in values.cuts(pack(real)):
            yield form + _base64(text)
        for _ in range(rounds):
            yield form + _base64(values.edited(pack(real), random))
        yield form + _base64(b"\xdc\xff\xff")
        yield form + _base64(b"\x91" * 3000)
    yield from values.WORDS


async def tokens(scene: Scene, random: Random, rounds: int) -> None:
    """Forged cursors, ids of events, tickets and names of sessions, wherever a client may bring one."""
    for name in ("list_topics", "list_cursors", "list_all_cursors", "list_routers"):
        operation, example = BY_NAME[name], EXAMPLES[name][0]
        await in_queries(scene, operation, example, (b"cursor=" + each for each in cursors(random, rounds)))
    stream, watched = BY_NAME["watch_stream"], EXAMPLES["watch_stream"][0]
    ids = some(event_ids(random, rounds), random, 20 * rounds)
    await in_headers(scene, stream, watched, (b"Last-Event-ID: " + each for each in some(ids, random, 2 * rounds)))
    watch = BY_NAME["watch"]
    for example in EXAMPLES["watch"]:
        made = (json.dumps({**example.body, "cursor": each.decode("latin-1")}).encode() for each in ids)
        await bodies(scene, watch, example, made)


async def tickets(scene: Scene, random: Random, rounds: int) -> None:
    """Forged tickets and keys, in a scene that needs a key."""
    ask = scene.request("POST", b"/v0/tickets", b'{"path":"/v0/ws"}')
    for name in ("websocket", "work", "watch_stream"):
        operation, example = BY_NAME[name], EXAMPLES[name][0]
        [answer] = await scene.answers([ask])
        real = answer.json["ticket"].encode()
        edits = (values.edited(real, random, b"_-aZ09%=&+~") for _ in range(rounds))
        forged = [each for each in (*values.cuts(real), *edits, *values.WORDS) if set(each).isdisjoint(b"\n \r\x7f#")]
        chosen = [real, *random.sample([each for each in forged if max(each, default=0) < 128], min(rounds * 2, 100))]

        def write(query: bytes, session: bytes, operation: Operation = operation, example: Example = example) -> bytes:
            path = target_of(operation, example, session).partition(b"?")[0]
            raw = scene.request(operation.method, b"%b?%b" % (path, query), None, _headers(example))
            return scene.without_key(raw)

        made = [way + each for each in chosen for way in (b"ticket=", b"token=", b"node=w&ticket=")]
        await scene.sent(operation, example, made, write)
    keys = [b"Bearer " + scene.secret.encode(), *values.HEADER_VALUES]
    keys += [values.edited(keys[0], random, b"\x80\xff\t =,") for _ in range(rounds)]
    lines = [b"Authorization: " + each for each in keys if set(each).isdisjoint(b"\r\n\x00")]
    await in_headers(scene, BY_NAME["list_topics"], EXAMPLES["list_topics"][0], lines)
