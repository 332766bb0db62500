"""The object store: the only module that uses obstore.

A store holds objects by name, `/` between folders. The replication relies on these promises; `races` proves the first
two at the first start:

- `create` of a name by several clients at once succeeds for exactly one of them.
- A read after a write finds what was written.
- `list` returns names in order, with every object that was created before the call.

All calls block, for `TIMEOUT` at most: call them in a worker thread. They are not repeated here. So a caller that gets
`Unreachable`, `Throttled` or `UnknownOutcome` from `create` tries again, and if the name exists by then, it reads the
object to learn whose it is. An outcome is never guessed.

Credentials come from the standard environment variables of each store (AWS_…, GOOGLE_…, AZURE_…). A `file:///` store
is a directory: a file is written beside its place and gets its name by a hard link, which fails if the name exists.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from proto.format.buffer import Buffer
from shardd.errors import ShardError
from shardd.replication.names import SERVICE
from shardd.storage.disk import RealDisk, identity

SCHEMES = ("s3", "gs", "az", "file")
CONNECT_TIMEOUT = "5s"
TIMEOUT = "30s"
RACERS = 8


class StoreError(ShardError):
    """A call to the store failed. The message names the object, the cause and the remedy."""

    lasting = False
    """True if trying again does not help until an operator has done something."""


class Exists(StoreError):
    """The object to create exists already (412), or another request for its name is under way (409): then it may never
    exist. The status does not tell, since some stores answer 409 for both. See `settle`."""


class Absent(StoreError):
    """There is no such object."""


class Refused(StoreError):
    """The store refused the credentials, or they do not allow the call."""

    lasting = True


class MissingBucket(StoreError):
    """The bucket, or the directory of a `file:///` store, does not exist."""

    lasting = True


class Throttled(StoreError):
    """The store asks for fewer requests (429, 503)."""


class Unreachable(StoreError):
    """There is no connection to the store, or a read failed."""


class UnknownOutcome(StoreError):
    """A write was sent and no valid answer came. It may have taken effect."""


class Unsuitable(StoreError):
    """The URL or the store cannot be used for replication."""

    lasting = True


class Unsealed(StoreError):
    """The object has not the seal that the key of TOPICS_BUCKET_KEY_FILE gives it, see `seal`."""

    lasting = True


class Entry(NamedTuple):
    """An object in a listing: its name, and its size in bytes."""

    name: str
    size: int


class Store(Protocol):
    url: str

    def create(self, name: str, data: Buffer) -> None:
        """Create an object. Raises `Exists` if there is one."""

    def put(self, name: str, data: Buffer) -> None:
        """Create or replace an object."""

    def get(self, name: str) -> Buffer:
        """A whole object. Raises `Absent`."""

    def get_range(self, name: str, offset: int, size: int) -> Buffer:
        """`size` bytes of an object, fewer at its end. Raises `Absent`."""

    def list(self, prefix: str, after: str = "") -> Iterator[Entry]:
        """Objects whose names begin with the folder `prefix`, in order, those behind the name `after` only. May raise
        at each step."""

    def delete(self, name: str) -> None:
        """Delete an object. Does nothing if it does not exist."""


def open_store(url: str) -> Store:
    """The store of a URL: `s3://bucket/prefix`, `gs://…`, `az://container/prefix`, `file:///directory`.

    Asks the store nothing. Raises `Unsuitable`.
    """
    scheme = url.partition("://")[0]
    if scheme not in SCHEMES or "://" not in url:
        raise Unsuitable(f"TOPICS_BUCKET={url}: the URL must begin with s3://, gs://, az:// or file:///")
    try:
        return BucketStore(url)
    except ImportError as error:
        raise Unsuitable(
            f"TOPICS_BUCKET={url} needs the package obstore: install topics-server[bucket] ({error})"
        ) from None


class BucketStore:
    """A store that obstore reaches."""

    def __init__(self, url: str) -> None:
        import obstore
        from obstore.store import from_url

        self.url = url
        self._obstore: Any = obstore
        self._errors: Any = obstore.exceptions
        self._is_directory = url.startswith("file:")
        self._known_root = (0, 0)
        """Device and inode of the directory that was used last."""
        self._is_marked = False
        """Whether `service.json` was read or created."""
        more: dict[str, Any] = {}
        if not self._is_directory:
            more["client_options"] = {"timeout": TIMEOUT, "connect_timeout": CONNECT_TIMEOUT, "allow_http": True}
            more["retry_config"] = {"max_retries": 0}
        try:
            self._store: Any = None if self._is_directory else from_url(url, **more)
        except (ValueError, self._errors.BaseError) as error:
            raise Unsuitable(f"TOPICS_BUCKET={url}: {_short(error)}") from None

    def create(self, name: str, data: Buffer) -> None:
        put = self._obstore.put
        self._call(name, lambda: put(self._store, name, data, mode="create", use_multipart=False), writes=True)

    def put(self, name: str, data: Buffer) -> None:
        self._call(name, lambda: self._obstore.put(self._store, name, data, use_multipart=False), writes=True)

    def get(self, name: str) -> Buffer:
        found: Buffer = self._call(name, lambda: memoryview(self._obstore.get(self._store, name).bytes()))
        return found

    def get_range(self, name: str, offset: int, size: int) -> Buffer:
        found: Buffer = self._call(
            name, lambda: memoryview(self._obstore.get_range(self._store, name, start=offset, length=size))
        )
        return found

    def list(self, prefix: str, after: str = "") -> Iterator[Entry]:
        found = self._listed(prefix, after)
        # A directory is listed in the order of its file system, a bucket by name.
        return iter(sorted(found)) if self._is_directory else found

    def _listed(self, prefix: str, after: str) -> Iterator[Entry]:
        listing = self._call(prefix, lambda: iter(self._obstore.list(self._store, prefix, offset=after or None)))
        while (rows := self._call(prefix, lambda: next(listing, None))) is not None:
            for each in rows:
                yield Entry(each["path"], each["size"])

    def delete(self, name: str) -> None:
        with suppress(Absent):
            self._call(name, lambda: self._obstore.delete(self._store, name), writes=True)

    def _call(self, name: str, call: Callable[[], Any], writes: bool = False) -> Any:
        """Run a call. Raises `StoreError` for its errors."""
        root = self._root() if self._is_directory else None
        error: Exception | None = None
        answer: Any = None
        try:
            answer = call()
        except (OSError, ValueError, self._errors.BaseError) as caught:
            error = caught
        if self._is_directory and self._root() != root:
            # What was found says nothing, and what was written may be anywhere.
            raise UnknownOutcome(f"{self.url}: {name}: the directory was replaced by another one during the call")
        if error is not None:
            raise self._translated(name, error, writes) from None
        self._is_marked = self._is_marked or name == SERVICE
        return answer

    def _root(self) -> tuple[int, int]:
        """Which directory the URL names. Raises `MissingBucket` if none, or one without `service.json` where there was
        one with it: obstore would list it as empty and create it for a write, on the disk below an unmounted file
        system."""
        try:
            if self._store is None:
                self._store = self._obstore.store.from_url(self.url)
            path = Path(self._store.prefix)
            root = identity(path)
            lost = root != self._known_root and self._is_marked and SERVICE not in RealDisk().list(path)
        except (FileNotFoundError, NotADirectoryError, self._errors.BaseError):
            raise MissingBucket(f"{self.url}: the directory does not exist; create or mount it") from None
        except OSError as error:
            raise self._translated("", error, False) from None
        if lost:
            raise MissingBucket(f"{self.url}: the directory has lost {SERVICE}; mount the one that had it")
        self._known_root = root
        return root

    def _translated(self, name: str, error: Exception, writes: bool) -> StoreError:
        text = str(error)
        where = f"{self.url}: {name}" if name else self.url
        status = _STATUS.search(text)
        code = int(status[1]) if status else 0
        if isinstance(error, self._errors.AlreadyExistsError | self._errors.PreconditionError):
            return Exists(f"{where} exists already")
        if "NoSuchBucket" in text or "ContainerNotFound" in text or "bucket does not exist" in text:
            return MissingBucket(f"{self.url}: the bucket does not exist; create it, or correct TOPICS_BUCKET")
        if isinstance(error, FileNotFoundError | self._errors.NotFoundError):
            return Absent(f"{where} does not exist")
        denied = (PermissionError, self._errors.PermissionDeniedError, self._errors.UnauthenticatedError)
        if isinstance(error, denied) or code in (401, 403) or _CREDENTIALS.search(self._without_names(text, name)):
            return Refused(
                f"{where}: the store refused the credentials; check the store's environment variables and the rights "
                f"to read, write, list and delete: {_short(error)}"
            )
        if code in (429, 503):
            return Throttled(f"{where}: the store asks for fewer requests ({code}); it is asked again after a pause")
        if not writes or _UNSENT.search(text):
            return Unreachable(f"{where}: the store cannot be reached; it is asked again: {_short(error)}")
        return UnknownOutcome(f"{where}: no valid answer to a write, which may have taken effect: {_short(error)}")

    def _without_names(self, text: str, name: str) -> str:
        """An error's text without names of the operator, such as that of the bucket, that read as a refusal."""
        for each in (*self.url.partition("://")[2].split("/"), name):
            text = text.replace(each, "") if _CREDENTIALS.search(each) else text
        return text


_STATUS = re.compile(r"status code: (\d\d\d)")
_UNSENT = re.compile(r"tcp connect error|dns error|ConnectError|Connect,")
_CREDENTIALS = re.compile(r"169\.254\.|[Cc]redential|Missing(Account|AccessKey|SecretAccessKey)")


def _short(error: Exception) -> str:
    """The first line of an error of obstore, without its debug form."""
    return str(error).partition("\n\nDebug source")[0].replace("\n", " ")[:300]


def settle(store: Store, name: str, data: Buffer) -> Buffer:
    """Create an object. Returns what the name holds from now on: `data`, or the earlier object. Raises `StoreError`; an
    `UnknownOutcome` if the store refused the name and nothing is there, so try again."""
    try:
        store.create(name, data)
        return data
    except Exists:
        pass
    try:
        return store.get(name)
    except Absent:
        raise UnknownOutcome(f"{store.url}: {name}: the store refused to create it, and it is not there") from None


def check_promises(store: Store, prefix: str) -> None:
    """Let `RACERS` clients create one name. Raises `Unsuitable` unless exactly one of them succeeds and each read finds
    what it wrote. Leaves no object behind. Raises other errors of the store."""
    name = f"{prefix}probe-{secrets.token_hex(8)}"
    tokens = [secrets.token_bytes(16) for _ in range(RACERS)]

    def race(token: bytes) -> bool:
        for _ in range(RACERS):
            try:
                store.create(name, token)
                return True
            except Exists:
                pass
            try:
                store.get(name)
                return False
            except Absent:
                pass  # refused because of a request that failed, too: it says nothing
        return False

    try:
        with ThreadPoolExecutor(RACERS) as threads:
            won = list(threads.map(race, tokens))
        if sum(won) != 1:
            raise Unsuitable(
                f"{store.url}: {sum(won)} of {RACERS} clients created the same object at once, so the store ignores "
                "conditional writes; use a store that supports them (If-None-Match)"
            )
        try:
            found = bytes(store.get(name))
        except Absent:
            found = b""
        listed = [each.name for each in store.list(prefix)]
        if found != tokens[won.index(True)] or name not in listed:
            raise Unsuitable(f"{store.url}: a read after a write did not find what was written; use another store")
    finally:
        with suppress(StoreError):  # an object of a few bytes that nothing reads
            store.delete(name)
