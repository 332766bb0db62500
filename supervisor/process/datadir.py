"""Data directory: its lock, and the number of shards it was created for.

    .                flock held by the supervisor and, by inheritance, by every shard process
    LOCK             the same; contains the supervisor's process id
    manifest.json    {"format": 1, "shards": N, "created_ms": ms since 1970}
    machine.json     {"machine": name}, only with other machines: how they call this one; made again if it is lost
    shard-00 …       one per shard; its content belongs to the shard

The state found decides the action, of the service and of commands that work on the files, which create nothing:

    manifest      shard directories        wanted shards     decision
    absent        none, or all empty       any               create it
    absent        one is not empty         any               refuse: the manifest is lost
    unreadable    any                      any               refuse
    other format  any                      any               refuse
    good          one missing              any               refuse: data is lost
    good          more, with data          any               refuse: the manifest is another one's
    good          all present              none or the same  use it
    good          all present              another number    refuse: `topics reshard` changes the number

The shards hold the locks too. A service started right after its predecessor was killed therefore cannot open a shard
whose old process is still alive.

The lock of the directory itself is decisive, because it cannot be removed without the directory. If other users can
open the directory, they can lock it, too: there LOCK decides, which they cannot open. Earlier releases lock LOCK, which
also names the holder. After taking each lock, the locked inode is compared with the inode that the path
names now. If they differ, the file or directory was replaced meanwhile, and locking starts again. On file systems that
lock files only (NFS), LOCK is the only lock. Entries are opened without following links (`safe_folder`), because root
may verify or reshard a directory that another user can write.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proto.process.directory_lock import lock_directory
from supervisor.config.settings import MAX_SHARDS
from supervisor.errors import SupervisorError
from supervisor.process.safe_folder import Folder, NotPlain, read

FORMAT = 1
MANIFEST = "manifest.json"
MACHINE = "machine.json"
LOCK = "LOCK"
RESHARD_DECISION = "reshard.json"
"""Exists while `topics reshard` exchanges the shards; the service must not start then, nor another command work."""
DEFAULT_MAX_SHARDS = 8
TAKEOVER_S = 5.0
"""How long to wait for the processes of a killed predecessor to exit."""
_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_OPEN_TO_OTHERS = 0o066


class DataDirError(SupervisorError):
    """A data directory that must not be used in its present state. The message says which, why and what to do."""


@dataclass(frozen=True, slots=True)
class Manifest:
    shards: int
    created_ms: int


def shard_name(index: int) -> str:
    return f"shard-{index:02d}"


def parse_manifest(path: Path, content: bytes) -> Manifest:
    """Parse a manifest. Raises `DataDirError` for anything but a manifest of this format."""
    try:
        fields: Any = json.loads(content)
        version = fields["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataDirError(
            f"{path} is damaged ({error!r}): put it back from a backup; its content is "
            '{"format": 1, "shards": <number of shard-* directories>, "created_ms": <as shards say>}'
        ) from error
    if version != FORMAT:
        raise DataDirError(f"{path} has format {version!r}, this release knows {FORMAT}: use the release that wrote it")
    shards, created_ms = fields.get("shards"), fields.get("created_ms")
    if type(shards) is not int or not 1 <= shards <= MAX_SHARDS or type(created_ms) is not int:
        raise DataDirError(f"{path} is damaged: shards is {shards!r}, created_ms is {created_ms!r}")
    return Manifest(shards, created_ms)


def decide(path: Path, manifest: Manifest | None, used: Mapping[str, bool], wanted: int | None) -> Manifest | None:
    """The manifest to use, or None for a directory that is to be created. See the table above.

    `used` maps the names of shard directories to whether they contain anything. Raises `DataDirError`.
    """
    if manifest is None:
        if any(used.values()):
            lost = ", ".join(sorted(name for name, filled in used.items() if filled))
            raise DataDirError(
                f"{path / MANIFEST} is missing although {lost} holds data: put the manifest back from a backup "
                "or choose another TOPICS_DATA_DIR; nothing was touched"
            )
        return None
    missing = [name for name in map(shard_name, range(manifest.shards)) if name not in used]
    if missing:
        raise DataDirError(f"{path / missing[0]} is missing: the manifest says {manifest.shards} shards")
    extra = sorted(
        name for name, filled in used.items() if filled and name not in map(shard_name, range(manifest.shards))
    )
    if extra:
        raise DataDirError(f"{path / extra[0]} holds data, but the manifest says {manifest.shards} shards")
    if wanted is not None and wanted != manifest.shards:
        raise DataDirError(
            f"TOPICS_SHARDS={wanted}, but {path} was made for {manifest.shards} shards: leave TOPICS_SHARDS unset, "
            "or change the number with `topics reshard` while the service is stopped"
        )
    return manifest


class DataDir:
    """Opened, locked data directory. `lock_fds` keep it locked while any process has them open."""

    def __init__(self, path: Path, manifest: Manifest, lock_fds: tuple[int, ...]) -> None:
        self.path = path
        self.shards = manifest.shards
        self.created_ms = manifest.created_ms
        self.lock_fds = lock_fds

    @classmethod
    def open(cls, path: Path, wanted_shards: int | None, created_ms: int, takeover_s: float = TAKEOVER_S) -> DataDir:
        """Lock `path`, and create its content if missing. Blocks up to `takeover_s`. Raises `DataDirError`."""
        path = path.absolute()
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock_fds = _lock(path, takeover_s)
        except OSError as error:
            raise DataDirError(
                _reason(path, error) + ": TOPICS_DATA_DIR must be a directory that can be written"
            ) from error
        with _kept(path, lock_fds):
            _check_exchanged(path)
            return cls(path, _manifest(path, wanted_shards, created_ms), lock_fds)

    @classmethod
    def locked(cls, path: Path, *, exchanging: bool = False) -> DataDir:
        """Lock an existing directory with the shards of its manifest, for work on its files; `exchanging` allows one
        whose shards are being exchanged. Raises `DataDirError`."""
        path = path.absolute()
        try:
            manifest = parse_manifest(path / MANIFEST, read(path / MANIFEST))
            lock_fds = _lock(path, takeover_s=0)
        except OSError as error:
            raise DataDirError(_reason(path, error) + ": TOPICS_DATA_DIR must name a data directory") from error
        with _kept(path, lock_fds):
            if not exchanging:
                _check_exchanged(path)
            if not (path / RESHARD_DECISION).exists():  # else the manifest may be of before the exchange
                decide(path, manifest, _used(path), None)
            return cls(path, manifest, lock_fds)

    def machine(self) -> str:
        """The name of this machine, made when there is none yet. Raises `DataDirError`."""
        path = self.path / MACHINE
        try:
            with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
                name = str(json.loads(read(path))["machine"])
                if name.isalnum():
                    return name
            name = secrets.token_hex(8)
            _write(path, json.dumps({"machine": name}).encode() + b"\n")
            return name
        except OSError as error:
            raise DataDirError(_reason(path, error)) from error

    def place(self) -> str:
        """Names the running system and the directory in it: another machine has another one, and so has a copy."""
        found = os.fstat(self.lock_fds[0])
        try:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            boot = secrets.token_hex(16)  # never equal to another one
        return f"{boot}/{found.st_dev}/{found.st_ino}"

    def check_whole(self, bucket: str) -> None:
        """A directory of one of several machines may lack shards. Raises `DataDirError` if it is to be used with
        another bucket, or with none, unless it held all shards last."""
        if not (self.path / MACHINE).exists():
            return
        marks = [self._mark(index) for index in range(self.shards)]
        others = {mark.get("url", bucket) for mark in marks} - {bucket}
        if (others or not bucket) and not all(mark.get("held") for mark in marks):
            raise DataDirError(
                f"{self.path} is of one of several machines, and may lack shards, so TOPICS_BUCKET has to stay "
                f"{', '.join(others) or 'as it was'}. For another bucket, or none, start the machine that was stopped "
                "last, which has all shards, or make a directory by `topics restore --from` the bucket"
            )

    def _mark(self, index: int) -> dict[str, Any]:
        """What the shard's process keeps of its bucket."""
        try:
            found = json.loads(read(self.path / shard_name(index) / "bucket.json"))
        except (FileNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def filled(self, index: int) -> bool:
        """Whether a shard has files. Raises OSError."""
        return any((self.path / shard_name(index)).iterdir())

    def close(self) -> None:
        _close(self.lock_fds)


def _reason(path: Path, error: OSError) -> str:
    return str(error) if isinstance(error, NotPlain) else f"{error.filename or path}: {error.strerror}"


def _close(descriptors: tuple[int, ...]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


@contextmanager
def _kept(path: Path, lock_fds: tuple[int, ...]) -> Iterator[None]:
    """Context that gives the locks back after an error. Raises `DataDirError` for OSError."""
    try:
        yield
    except BaseException as error:
        _close(lock_fds)
        if isinstance(error, OSError):
            raise DataDirError(_reason(path, error)) from error
        raise


def _lock(path: Path, takeover_s: float) -> tuple[int, ...]:
    """Descriptors of the directory and of LOCK, both locked. Raises `DataDirError` if another process has a lock."""
    deadline = time.monotonic() + takeover_s
    while True:
        try:
            found = _try_lock(path)
        except BlockingIOError:
            holder = _holder(path)
            # If the holder is dead but the lock is held, its shards are about to exit.
            if _alive(holder) or time.monotonic() >= deadline:
                raise DataDirError(
                    f"{path} is in use by process {holder or f'(unknown: {LOCK} was removed)'}: stop that one, "
                    "or give this one a TOPICS_DATA_DIR of its own"
                ) from None
            time.sleep(0.02)
        else:
            if found:
                return found


def _try_lock(path: Path) -> tuple[int, ...]:
    """As `_lock`, without waiting; () if a name was replaced meanwhile. Raises `BlockingIOError`."""
    with Folder.of(path) as folder:
        free = _lock_directory(folder.descriptor)
        if not _same(os.fstat(folder.descriptor), os.stat(path)):
            return ()
        file = _opened_lock(path, folder.descriptor, create=free)
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                raise NotPlain(path / LOCK, found.st_mode)
            if found.st_mode & _OPEN_TO_OTHERS and found.st_uid == os.geteuid():
                os.fchmod(file, 0o600)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                now = os.stat(LOCK, dir_fd=folder.descriptor, follow_symlinks=False)
            except FileNotFoundError:
                now = None
            if now is None or not _same(os.fstat(file), now):
                os.close(file)
                return ()
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
            return os.dup(folder.descriptor), file
        except BaseException:
            os.close(file)
            raise


def _lock_directory(descriptor: int) -> bool:
    """Lock the directory. Returns False if another process has its lock and may be a stranger's: who can open a
    directory can lock it. Raises `BlockingIOError` if only this user and root can."""
    try:
        lock_directory(descriptor)
    except BlockingIOError:
        if not os.fstat(descriptor).st_mode & _OPEN_TO_OTHERS:
            raise
        return False
    return True


def _opened_lock(path: Path, folder: int, *, create: bool) -> int:
    """The file LOCK, which only this user can open. If a directory that others can open is locked, LOCK tells a service
    from a stranger: a service has it locked. If it is missing then, it was removed: raises `BlockingIOError`."""
    try:
        return os.open(LOCK, _LOCK_FLAGS if create else _LOCK_FLAGS & ~os.O_CREAT, 0o600, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ENOENT and not create:
            raise BlockingIOError from None
        if error.errno == errno.ELOOP:
            raise NotPlain(path / LOCK, stat.S_IFLNK) from None
        error.filename = str(path / LOCK)
        raise


def _same(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def _holder(path: Path) -> str:
    """Content of LOCK: the holder's process id; "" if it is missing."""
    try:
        return read(path / LOCK)[:32].decode("ascii", "replace").strip()
    except OSError:
        return ""


def _alive(pid: str) -> bool:
    if not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    # A zombie still has a pid, but no files and no lock.
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _check_exchanged(path: Path) -> None:
    """Raises `DataDirError` if a reshard has begun to exchange the shards and has not ended."""
    if (path / RESHARD_DECISION).exists():
        raise DataDirError(
            f"{path}: its shards are being exchanged for another number of them, and that was interrupted: "
            "run `topics reshard` again to finish it"
        )


def _manifest(path: Path, wanted: int | None, created_ms: int) -> Manifest:
    target = path / MANIFEST
    try:
        found = parse_manifest(target, read(target))
    except FileNotFoundError:
        found = None
    used = _used(path)
    known = decide(path, found, used, wanted)
    if known is not None:
        return known
    fresh = Manifest(wanted or default_shards(), created_ms)
    # Directories come first, because a manifest implies that all of them exist.
    for entry in used:
        (path / entry).rmdir()
    for index in range(fresh.shards):
        (path / shard_name(index)).mkdir(mode=0o700)
    sync(path)
    write_manifest(path, fresh)
    sync(path.parent)
    return fresh


def _used(path: Path) -> dict[str, bool]:
    """Names of the shard directories, and of others that are named so, with whether they contain anything. Raises
    OSError."""
    return {entry.name: any(entry.iterdir()) for entry in path.glob("shard-*") if entry.is_dir()}


def default_shards() -> int:
    return min(len(os.sched_getaffinity(0)), DEFAULT_MAX_SHARDS)


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write and sync the manifest of a data directory. Raises OSError."""
    fields = {"format": FORMAT, "shards": manifest.shards, "created_ms": manifest.created_ms}
    _write(path / MANIFEST, json.dumps(fields).encode() + b"\n")


def _write(target: Path, content: bytes) -> None:
    temporary = target.with_name(target.name + ".tmp")
    temporary.unlink(missing_ok=True)
    with open(temporary, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, target)
    sync(target.parent)


def sync(path: Path) -> None:
    """fsync a file or a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
