"""Checks and figures of a service's bucket, for `topics replica verify` and `topics replica status`."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from shardd.offline.reshard import shard_name
from shardd.replication.attach import TermError, read_term
from shardd.replication.browse import AHEAD, Browser, Damaged, ManifestAt, patiently, shards_of
from shardd.replication.manifests import Head, Stream
from shardd.replication.names import ShardNames, number_of
from shardd.replication.parts import END, HEADER_SIZE, Part, PartError, check_frames
from shardd.replication.seal import NONE, Sealed
from shardd.replication.store import Absent, Store, Unsealed
from shardd.storage import catalog
from shardd.storage.catalog import LACKS_REMEDY


@dataclass(slots=True)
class BucketReport:
    """The state of one shard in a bucket. `problems` name the object, its fault, and the remedy."""

    shard: str
    term: int = 0
    holder: str = ""
    """Address of the machine that has the newest term."""
    ended: bool = False
    """Whether it has given the term up."""
    manifests: int = 0
    checkpoint_bytes: int = 0
    parts: int = 0
    fences: int = 0
    part_bytes: int = 0
    last_part: int = 0
    last_frame: int = 0
    last_ms: int = 0
    reaches_back_ms: int = 0
    """The earliest moment that can be restored, ms since 1970; 0 for the log's begin."""
    problems: list[str] = field(default_factory=list)


def status(store: Store) -> Iterator[dict[str, Any]]:
    """The figures of each shard from listings and headers. Blocks. Raises `Mismatch`, `StoreError`."""
    yield from _reports(store, read_all=False)


def verify(store: Store) -> Iterator[dict[str, Any]]:
    """As `status`, and reads and checks every object. Blocks. Raises `Mismatch`, `StoreError`."""
    yield from _reports(store, read_all=True)


def _reports(store: Store, read_all: bool) -> Iterator[dict[str, Any]]:
    shards, _ = shards_of(store)
    with ThreadPoolExecutor(AHEAD) as threads:
        for index in range(shards):
            browser = Browser(store, ShardNames(index), threads)
            report = BucketReport(shard_name(index))
            _look(store, browser, report, read_all)
            yield {"kind": "report", "done": index + 1, "total": shards, **asdict(report)}


def _look(store: Store, browser: Browser, report: BucketReport, read_all: bool) -> None:
    listed = patiently(lambda: list(store.list(browser.names.terms)))
    terms = [number for each in listed if (number := number_of(each.name)) is not None]
    report.term = max(terms, default=0)
    for number in terms if read_all else terms[-1:]:
        _look_at_term(store, browser.names.term(number), number, report)
    gone = sorted(set(range(1, report.term)) - set(terms))
    report.problems += (f"{browser.names.term(number)} is missing" for number in gone[:10])
    first_part, newest = _look_at_manifests(browser, report, read_all)
    numbers = browser.numbers(1)
    report.parts = len(numbers)
    report.part_bytes = sum(size for _, size in numbers)
    report.fences = sum(size == HEADER_SIZE for _, size in numbers)
    needed = [number for number, _ in numbers if number >= first_part]
    _check_numbers(browser, report, needed, first_part, newest)
    if read_all:
        _check_parts(browser, report, [number for number, _ in numbers], first_part)
    if numbers:
        try:
            last = browser.header(numbers[-1][0])
        except Damaged as error:
            report.problems += [] if read_all else [str(error)]
        else:
            report.last_part, report.last_frame, report.last_ms = last.number, last.last_no, last.last_ms
            if last.term > report.term:
                report.problems.append(f"{browser.names.term(last.term)} is missing, although parts are of that term")
            report.ended = last.kind == END and last.term == report.term


def _look_at_term(store: Store, name: str, number: int, report: BucketReport) -> None:
    try:
        found = read_term(patiently(lambda: store.get(name)), number)
    except (TermError, Absent, Unsealed) as error:
        report.problems.append(f"{name}: {error}. Put it back; a later term does without it")
    else:
        report.holder = found.address or found.machine


def _look_at_manifests(browser: Browser, report: BucketReport, read_all: bool) -> tuple[int, int]:
    """Returns the first part that a manifest needs, and the one that the newest is as of."""
    first_part, newest = 1, 0
    streams: dict[str, Stream] = {}
    for number, head in browser.heads():
        report.manifests += 1
        if isinstance(head, str):
            report.problems.append(f"{browser.names.manifest(number)}: {head}. Put it back, or delete it")
            continue
        first_part, newest = head.first_part, max(newest, head.part)
        report.reaches_back_ms = head.upto_ms
        fresh = [stream for stream in head.streams if stream.name not in streams]
        streams |= {stream.name: stream for stream in fresh}
        if read_all:
            damaged = list(browser.chunks(fresh))
            report.problems += (
                f"{problem}. Put it back, or delete manifest {number} and those before it that name it"
                for problem in damaged
            )
            try:
                found = browser.manifest(number)
                lacking = [] if damaged else _lacking(browser, found)
            except Damaged as error:
                report.problems.append(str(error))
            else:
                report.problems += (f"{browser.names.manifest(number)}: {each}; {LACKS_REMEDY}" for each in lacking)
    if read_all:
        report.problems += _unchained(browser)
    report.checkpoint_bytes = sum(stream.size for stream in streams.values())
    return first_part, newest


def _lacking(browser: Browser, found: ManifestAt) -> list[str]:
    """What the catalog of a manifest lacks, by its sums. Raises `Damaged`."""
    catalogs = [each for each in found.files if each.path == catalog.file_name(found.head.catalog)]
    files = browser.files(found._replace(files=catalogs))
    try:
        return [problem for _, pieces in files for problem in catalog.lacking(b"".join(pieces))]
    except catalog.CatalogError as error:
        raise Damaged(f"{browser.names.manifest(found.number)}: {error}") from None


def _unchained(browser: Browser) -> list[str]:
    """With a key: manifests whose predecessor is missing. The oldest one's was removed by retention."""
    store = browser.store
    if not isinstance(store, Sealed):
        return []
    names = [browser.names.manifest(number) for number, head in browser.heads() if isinstance(head, Head)]
    seals = {name: store.seal_of(name) for name in names}
    there = {NONE, *(seal.mac for seal in seals.values())}
    return [
        f"{name}: the manifest that was the newest when it was made is missing or replaced. Put it back"
        for name, seal in seals.items()
        if name != min(seals) and seal.previous not in there
    ]


def _check_numbers(browser: Browser, report: BucketReport, numbers: list[int], first: int, newest: int) -> None:
    expected = first
    for number in [*numbers, newest + 1] if not numbers or numbers[-1] < newest else numbers:
        if number > expected:
            report.problems.append(f"{browser.names.log}: parts {expected} to {number - 1} are missing. Put them back")
        expected = number + 1


def _check_parts(browser: Browser, report: BucketReport, numbers: list[int], first: int) -> None:
    """Check parts, also fences that no restore needs. From part `first` on, their frames have to be consecutive."""
    before: Part | None = None
    for number in numbers:
        try:
            part, frames = browser.part(number)
            check_frames(part, frames)
        except (Damaged, PartError) as error:
            report.problems.append(f"{browser.names.part(number)}: {error}")
            before = None
            continue
        if not part.has_frames:
            continue  # its frame numbers say nothing
        if before is not None and before.number >= first and part.first_no != before.last_no + 1:
            report.problems.append(
                f"{browser.names.part(number)} begins with frame {part.first_no}, the one before ends with "
                f"{before.last_no}. Put the right objects back"
            )
        before = part
