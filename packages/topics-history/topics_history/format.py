"""A history as bytes: JSON Lines, a header, an operation in each line, an end with the digest of all lines before.

Lines are in the order of `end_ns`, so a reader knows at each line everything that had ended before. `docs/histories.md`
has the table of fields. A file that breaks a rule of the format raises `HistoryError` with the number of the line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, BinaryIO, Literal

import msgspec
from msgspec import Meta, Struct

VERSION = 1
LONGEST_LINE_BYTES = 64 << 20

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Seq = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Body = Annotated[str, Meta(min_length=1, max_length=256)]
Name = Annotated[str, Meta(min_length=1, max_length=1024)]
Outcome = Literal["ok", "failed", "unknown"]


class HistoryError(Exception):
    """The file is no whole history. `line` is the number of the line, from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"line {line}: {message}")
        self.line = line


class _Strict(Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    pass


class Topic(_Strict):
    type: Literal["log", "queue"] = "log"
    lossy: bool = False
    """Whether retention, or the class, may take records; a gap explains a hole of such a topic only."""
    leases_durable: bool = False


class Router(_Strict):
    source: Name
    dest: Name
    guarantee: Literal["at_least_once", "exactly_once"] = "at_least_once"
    preserve_tag: bool = True


class Header(_Strict, omit_defaults=False):
    format: Literal["topics-history"]
    version: int
    topics: dict[Name, Topic]
    routers: list[Router] = []


class Operation(_Strict, tag_field="op", kw_only=True, omit_defaults=False):
    """The common part. `outcome` is ok (there is a `result`), failed (certainly not done) or unknown."""

    client: Name
    start_ns: Count
    end_ns: Count
    outcome: Outcome


class OfTopic(Operation, kw_only=True):
    topic: Name


class AppendArgs(_Strict):
    bodies: Annotated[list[Body], Meta(min_length=1)]
    tags: list[str | None] | None = None
    key: str | None = None


class Appended(_Strict):
    first_seq: Seq
    last_seq: Seq
    head_seq: Count


class Append(OfTopic, tag="append"):
    args: AppendArgs
    result: Appended | None = None


class ReadArgs(_Strict):
    from_seq: Count


class ReadResult(_Strict):
    records: list[tuple[Seq, Body]]
    next_from_seq: Count
    head_seq: Count | None = None
    earliest_seq: Count | None = None
    caught_up: bool = False
    gap: tuple[Seq, Seq] | None = None


class Read(OfTopic, tag="read"):
    args: ReadArgs
    result: ReadResult | None = None


class Bounds(_Strict):
    head_seq: Count
    earliest_seq: Count


class GetState(OfTopic, tag="state"):
    result: Bounds | None = None


class DeleteArgs(_Strict):
    before_seq: Count | None = None
    tag: str | None = None


class Delete(OfTopic, tag="delete"):
    args: DeleteArgs
    result: Bounds | None = None


class OpenArgs(_Strict):
    stream: Name
    positions: dict[Name, Count]


class Open(Operation, tag="open"):
    """A stream begins, or resumes at the positions that its client kept."""

    args: OpenArgs
    result: None = None


class FrameArgs(_Strict):
    stream: Name


class FrameResult(_Strict):
    kind: Literal["records", "gap", "caught_up"]
    to_seq: Count
    """The last seq of the records or the gap; of `caught_up` the head."""
    records: list[tuple[Seq, Body]] = []
    gap_from: Count = 0


class Frame(OfTopic, tag="frame"):
    """One event of a stream. `start_ns` is when the stream was opened."""

    args: FrameArgs
    result: FrameResult | None = None


class ClaimArgs(_Strict):
    node: Name
    lease_ms: Count


class ClaimResult(_Strict):
    jobs: list[tuple[Seq, Body, Name]]
    """Each seq, body and lease id."""


class Claim(OfTopic, tag="claim"):
    args: ClaimArgs
    result: ClaimResult | None = None


class LeaseArgs(_Strict):
    seqs: Annotated[list[Seq], Meta(min_length=1)]
    lease_ids: Annotated[list[Name], Meta(min_length=1)]
    lease_ms: Count = 0
    """Of an extend."""


class LeaseResult(_Strict):
    skipped: list[Seq]


class Ack(OfTopic, tag="ack"):
    args: LeaseArgs
    result: LeaseResult | None = None


class Nack(OfTopic, tag="nack"):
    args: LeaseArgs
    result: LeaseResult | None = None


class Extend(OfTopic, tag="extend"):
    args: LeaseArgs
    result: LeaseResult | None = None


class CursorGetArgs(_Strict):
    cursor: Name


class CursorPutArgs(CursorGetArgs):
    seq: Count


class CursorResult(_Strict):
    seq: Count
    """0 if there is no such cursor."""


class CursorPut(OfTopic, tag="cursor_put"):
    args: CursorPutArgs
    result: CursorResult | None = None


class CursorGet(OfTopic, tag="cursor_get"):
    args: CursorGetArgs
    result: CursorResult | None = None


class FaultArgs(_Strict):
    kind: Literal["kill", "pause", "other"]
    of: Name


class Fault(Operation, tag="fault"):
    args: FaultArgs
    result: None = None


class Settled(Operation, tag="settled"):
    """Faults and writers have ended and routers have copied: reads from here on show the end of the history."""

    result: None = None


class End(_Strict, tag_field="op", tag="end", omit_defaults=False):
    operations: Count
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


AnyOperation = (
    Append
    | Read
    | GetState
    | Delete
    | Open
    | Frame
    | Claim
    | Ack
    | Nack
    | Extend
    | CursorPut
    | CursorGet
    | Fault
    | Settled
)
_header = msgspec.json.Decoder(Header)
_line = msgspec.json.Decoder(AnyOperation | End)
_encoder = msgspec.json.Encoder()
WITHOUT_RESULT = (Open, Fault, Settled)


class Reader:
    """The operations of a file, line by line; `header` is there at once. Holds one line at a time."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self.line = 0
        content = self._next()
        if content is None:
            raise HistoryError(1, "the file is empty")
        self.header = self._decode(_header, content)
        if self.header.version != VERSION:
            raise HistoryError(1, f"version {self.header.version} is not known; this checker reads {VERSION}")
        for router in self.header.routers:
            if not {router.source, router.dest} <= self.header.topics.keys():
                raise HistoryError(1, f"a router from {router.source} to {router.dest}, which are not both in topics")

    def _next(self) -> bytes | None:
        content = self._file.readline(LONGEST_LINE_BYTES)
        if not content:
            return None
        self.line += 1
        if not content.endswith(b"\n"):
            raise HistoryError(self.line, "the line does not end: the file is truncated")
        return content

    def _decode(self, decoder: msgspec.json.Decoder[Any], content: bytes) -> Any:
        try:
            found = decoder.decode(content)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise HistoryError(self.line, str(error)) from None
        self._digest.update(content)
        return found

    def __iter__(self) -> Iterator[AnyOperation]:
        """Raises `HistoryError` at the line that is wrong; after the last operation if the end is missing or wrong."""
        last_ns = count = 0
        while (content := self._next()) is not None:
            before = self._digest.hexdigest()
            operation = self._decode(_line, content)
            if isinstance(operation, End):
                if (operation.operations, operation.sha256) != (count, before):
                    raise HistoryError(self.line, "the lines before are not those that were written")
                if self._file.read(1):
                    raise HistoryError(self.line + 1, "there is something after the end")
                return
            self._check(operation, last_ns)
            last_ns = operation.end_ns
            count += 1
            yield operation
        raise HistoryError(self.line + 1, "the file ends without an end: it is truncated")

    def _check(self, operation: AnyOperation, last_ns: int) -> None:
        """Rules that one line keeps, alone or with the one before."""
        wrong = ""
        without = isinstance(operation, WITHOUT_RESULT)
        answered = operation.outcome == "ok" if without else operation.result is not None
        if operation.start_ns > operation.end_ns:
            wrong = "it ends before it starts"
        elif operation.end_ns < last_ns:
            wrong = "it ended before the operation of the line before; lines are in the order of end_ns"
        elif answered != (operation.outcome == "ok"):
            wrong = "an operation has a result if, and only if, its outcome is ok"
        elif isinstance(operation, OfTopic) and operation.topic not in self.header.topics:
            wrong = f"{operation.topic} is not in the topics of the header"
        elif isinstance(operation, Append):
            args = operation.args
            if args.tags is not None and len(args.tags) != len(args.bodies):
                wrong = "there are not as many tags as bodies"
            elif len(set(args.bodies)) != len(args.bodies):
                wrong = "two records have the same body"
        elif isinstance(operation, Ack | Nack | Extend):
            leases = operation.args
            if len(set(leases.seqs)) != len(leases.seqs) or len(leases.seqs) != len(leases.lease_ids):
                wrong = "there are not as many lease_ids as different seqs"
        elif isinstance(operation, Open) and not operation.args.positions.keys() <= self.header.topics.keys():
            wrong = "a stream of a topic that is not in the header"
        if wrong:
            raise HistoryError(self.line, wrong)


class Writer:
    """Writes a history. The caller gives operations in the order of their ends, and closes it."""

    def __init__(self, file: BinaryIO, topics: dict[str, Topic], routers: Iterable[Router] = ()) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._count = 0
        self._write(Header("topics-history", VERSION, topics, list(routers)))

    def _write(self, value: Struct) -> None:
        content = _encoder.encode(value) + b"\n"
        self._digest.update(content)
        self._file.write(content)

    def write(self, operation: Operation) -> None:
        self._write(operation)
        self._count += 1

    def close(self) -> None:
        """Write the end. A history without it is refused as truncated."""
        self._write(End(self._count, self._digest.hexdigest()))
        self._file.flush()
