"""Bucket: reads objects through `pyarrow.fs`. `replica` knows what they are.

    s3://bucket/prefix          options of pyarrow may follow: ?endpoint_override=host:port&scheme=http&region=…
    gs://bucket/prefix
    az://container/prefix       account and key from AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY
    abfs://…                    as pyarrow has it
    a directory                 a file:/// bucket

Credentials are those that pyarrow finds: standard environment variables, files and roles, on driver and executors. An
object never changes, so what planning has read is kept for the next plan, up to `KEPT_BYTES`. A call that fails is
repeated for `PATIENCE` seconds, unless repeating cannot help.
"""

from __future__ import annotations

import os
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from pyspark_topics import seal
from pyspark_topics.errors import BucketError, CorruptFile
from pyspark_topics.storage import Kept

PATIENCE = 20.0
PAUSE = 0.5
AHEAD = 8
"""Calls that are under way at once."""
KEPT_BYTES = 256 << 20
NEAR_BYTES = 16 << 20
OPENED_BYTES, SEALS = 64 << 20, 1024
"""The kept parts of objects whose seals were checked: their content, and that many seals of parts."""
NEAR = 1 << 20
"""Small files lie side by side in their objects. So of these, as much is read at once, and up to `NEAR_BYTES` kept."""
BLOCK = 256 << 10
"""A larger file is read in multiples of this."""
MOST = 4 << 20
"""Bytes of one call."""
REMEDY = "; `topics replica verify` names all damaged objects: put them back"
_DENIED = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY|SIGNATURE|InvalidAccessKey|SignatureDoesNotMatch|AuthenticationFailed|"
    r"[Cc]redential|PermissionDenied|Unauthenticated|Unauthorized|Forbidden|Authorization\w+|HTTP status 40[13]"
)
_A = TypeVar("_A")


class Extent(NamedTuple):
    """Bytes of an object."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """A prefix of a bucket. `service` tells what was kept from what another service made there later. With a key, an
    object is read as a whole, also for a range: its seal says nothing about less."""

    url: str = field(repr=False)
    service: int = 0
    key_file: str = ""
    """A path, not the key: pieces of a read go to executors as they are."""

    @property
    def shown(self) -> str:
        """The URL without credentials and options."""
        return re.sub(r"(://)[^/@]*:[^/@]*@", r"\1", self.url.partition("?")[0]).rstrip("/")

    def list(self, folder: str) -> list[str]:
        """Names of the objects in a folder. Raises `BucketError`."""

        def listed() -> list[str]:
            system, base = _opened(self.url)
            found = system.get_file_info(fs.FileSelector(f"{base}/{folder}", allow_not_found=True))
            return [f"{folder}/{each.base_name}" for each in found if each.type == fs.FileType.File]

        return self._patiently(folder, listed)

    def get(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        """Bytes of an object, fewer at its end; with a key those of its content. Raises `FileNotFoundError`,
        `BucketError`; with a key `Unsealed`, `NotADataDirectory`, `BadOption`."""
        end = None if size is None else offset + size
        kept: bytes | None = _kept.get((self, name, 0, None))
        if kept is None and self.key_file:
            kept = self._checked(name)
        if kept is not None:
            return kept[offset:end]
        return self._read(name, offset, size)

    def _read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:

        def read() -> bytes:
            system, base = _opened(self.url)
            with system.open_input_file(f"{base}/{name}") as file:
                found: bytes = file.read() if size is None else file.read_at(size, offset)
                return found

        return self._patiently(name, read)

    def _checked(self, name: str) -> bytes:
        found: bytes | None = _opened_last.get((self, name))
        if found is None:
            shown = f"{self.shown}/{name}"
            found, previous, mac = seal.opened(seal.read_key(self.key_file), name, self._read(name), shown)
            _opened_last.put((self, name), found, len(found))
            if "/log/" in name:
                _seals.put((self, name), (previous, mac), 1)
                self._check_chain(name, previous, mac)
        return found

    def _check_chain(self, name: str, previous: bytes, mac: bytes) -> None:
        """Compare a part with those before and after it, as far as they were read. Raises `Unsealed`."""
        folder, number = name[:-20], int(name[-20:])
        _, before = _seals.get((self, f"{folder}{number - 1:020d}")) or (None, previous)
        behind, _ = _seals.get((self, f"{folder}{number + 1:020d}")) or (mac, None)
        if previous not in (seal.NONE, before) or behind not in (seal.NONE, mac):
            raise seal.Unsealed(
                f"{self.shown}/{name} does not follow the part before it: one of them, or the one behind, was replaced "
                f"by another that this service had made{REMEDY}"
            )

    def keep(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        """As `get`, for bytes that the next plan needs again."""
        key = (self, name, offset, size)
        found: bytes | None = _kept.get(key)
        if found is None:
            found = self.get(name, offset, size)
            _kept.put(key, found, len(found))
        return found

    def near(self, name: str, offset: int, size: int) -> bytes:
        """As `get`, for a small file, whose neighbours are read next."""
        if self.key_file:
            return self.get(name, offset, size)
        found = []
        for block in range(offset // NEAR, (offset + size - 1) // NEAR + 1):
            if (data := _near.get((self, name, block))) is None:
                data = self.get(name, block * NEAR, NEAR)
                _near.put((self, name, block), data, len(data))
            found.append(data)
        begin = offset % NEAR
        return b"".join(found)[begin : begin + size]

    def _patiently(self, name: str, call: Callable[[], _A]) -> _A:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return call()
            except FileNotFoundError:
                raise FileNotFoundError(2, f"there is no such object{REMEDY}", f"{self.shown}/{name}") from None
            except BucketError:
                raise
            except OSError as error:
                denied = isinstance(error, PermissionError) or _DENIED.search(str(error))
                if denied or time.monotonic() > until:
                    raise self._explained(name, error, bool(denied)) from None
            time.sleep(PAUSE)

    def _explained(self, name: str, error: OSError, denied: bool) -> BucketError:
        cause = str(error).replace("\n", " ")[:300]
        if denied:
            return BucketError(
                f"{self.shown}/{name}: the store refused the credentials, or they do not allow to read and list: set "
                f"the store's environment variables on driver and executors: {cause}"
            )
        return BucketError(
            f"{self.shown}/{name}: the store cannot be reached: check the URL, the endpoint and the network: {cause}"
        )


_kept, _near = Kept(KEPT_BYTES), Kept(NEAR_BYTES)
_opened_last, _seals = Kept(OPENED_BYTES), Kept(SEALS)


@cache
def _opened(url: str) -> tuple[Any, str]:
    """File system and path of a URL. Raises `BucketError`."""
    scheme = urlsplit(url).scheme
    try:
        if scheme == "az":
            account = os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")
            if not account:
                raise BucketError(f"{url}: set AZURE_STORAGE_ACCOUNT_NAME on driver and executors")
            key = os.environ.get("AZURE_STORAGE_ACCOUNT_KEY") or None
            return fs.AzureFileSystem(account, account_key=key), url.removeprefix("az://").rstrip("/")
        if scheme == "s3a":
            url = url.replace("s3a", "s3", 1)
        if scheme in ("gs", "gcs") and "retry_limit_seconds" not in url:
            # Without it, a store that does not answer is asked for a quarter of an hour.
            url += ("&" if "?" in url else "?") + f"retry_limit_seconds={PATIENCE:.0f}"
        system, path = fs.FileSystem.from_uri(url)
    except (ValueError, NotImplementedError, ImportError, pa.ArrowException) as error:
        raise BucketError(f"{Bucket(url).shown}: not a URL that pyarrow {pa.__version__} can open: {error}") from None
    return system, path.rstrip("/")


@dataclass(frozen=True, slots=True)
class ObjectFile:
    """A file whose bytes are in objects, end to end."""

    bucket: Bucket
    path: str
    extents: tuple[Extent, ...]
    index_extents: tuple[Extent, ...] = ()
    remedy: ClassVar = REMEDY
    constant: ClassVar = True

    def open(self, end: int | None, *, settled: bool) -> _Objects:
        return _Objects(self, end)

    def index(self) -> bytes | None:
        try:
            return b"".join(self.bucket.near(*extent) for extent in self.index_extents) or None
        except (FileNotFoundError, seal.Unsealed):
            return None

    def at(self, offset: int) -> str:
        for extent in self.extents:
            if offset < extent.size:
                return f"{self.bucket.shown}/{extent.name}, byte {extent.offset + offset}"
            offset -= extent.size
        return f"{self.path}, at its end"


class _Objects:
    """Content of an `ObjectFile`, read where it is needed."""

    def __init__(self, file: ObjectFile, end: int | None) -> None:
        self.size = sum(extent.size for extent in file.extents)
        length = self.size if end is None else min(end, self.size)
        self.buffer = pa.allocate_buffer(length)
        self.view = memoryview(self.buffer).cast("B")
        self._bucket = file.bucket
        self._extents = file.extents
        self._starts = [0, *accumulate(extent.size for extent in file.extents)]
        self._there: set[int] = set()

    def need(self, ranges: Iterable[tuple[int, int]]) -> None:
        touched = {
            block
            for offset, size in ranges
            if size
            for block in range(offset // BLOCK, (offset + size - 1) // BLOCK + 1)
        }
        wanted = sorted(touched - self._there)
        calls = list(self._calls(wanted))
        if len(calls) == 1:
            self._read(*calls[0])
        elif calls:
            with ThreadPoolExecutor(min(AHEAD, len(calls))) as threads:
                list(threads.map(lambda call: self._read(*call), calls))
        self._there.update(wanted)

    def _calls(self, blocks: Sequence[int]) -> Iterable[tuple[int, Extent]]:
        """The bytes to read for ascending blocks, and where they go: neighbours in one call, up to `MOST`."""
        length, at = len(self.view), 0
        while at < len(blocks):
            first, most = blocks[at], MOST // BLOCK
            count = 1
            while at + count < len(blocks) and blocks[at + count] == first + count and count < most:
                count += 1
            at += count
            start, stop = first * BLOCK, min((first + count) * BLOCK, length)
            while start < stop:
                place = bisect_right(self._starts, start) - 1
                name, offset, _ = self._extents[place]
                here = min(stop, self._starts[place + 1])
                yield start, Extent(name, offset + start - self._starts[place], here - start)
                start = here

    def _read(self, start: int, extent: Extent) -> None:
        data = self._bucket.near(*extent) if self.size < NEAR else self._bucket.get(*extent)
        if len(data) != extent.size:
            raise CorruptFile(f"{self._bucket.shown}/{extent.name}: it is too short{REMEDY}")
        self.view[start : start + extent.size] = data
