"""Backup of a data directory, while the service runs or is stopped. `restore` reverses it.

    DIR/<UTC time>/backup.json             time of its begin and end, and the data directory it was made from
    DIR/<UTC time>/manifest.json, shard-NN/…, cold/shard-NN/…      as in the data directory and the cold folder

A backup is made under a name that ends in `.tmp`, and renamed once it is complete and synced. A directory with its
final name is therefore a complete backup, whichever process died. The service takes no part in a backup and does not
wait for it.

Each shard is copied as of a moment of its own, after the backup began: the newest catalog C, everything that C refers
to, and the log up to its current end. Recovery cuts off the torn end of the log. The service keeps all of these files,
and no file is ahead of C, until the checkpoint after the next one. If that checkpoint was made meanwhile, the shard is
copied again; this copies only files that have changed. A reshard may move a topic from a shard that is still to be
copied to one that was copied before: a backup that it overlaps is refused. So is one of a standby's shard while its
files are made again from the bucket.

Files are copied from the data directory, because a hard link would show later deletions in segments. Backups never
change, so files are hard-linked between them. A file with the same size and modification time as in the last backup is
linked. A file that changed just before that backup began is copied, because file times have a limited resolution.

Only regular files are copied and no link is followed (`supervisor.process.safe_folder`), because root may back up a
directory that another user can write:

    a link, FIFO, socket or device with the name of a data file     the backup is refused; the error names the entry
    the same with another name                                      left out; a `warning` names the entry
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Callable, Container, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor.errors import SupervisorError
from supervisor.process.datadir import MACHINE, MANIFEST, RESHARD_DECISION, sync
from supervisor.process.safe_folder import Folder, NotPlain, read

FORMAT = 1
MARK = "backup.json"
BUCKET = "bucket.json"
COLD = "cold"
ATTEMPTS = 10
_SETTLED_NS = 200_000_000
"""Longer than the resolution of any file system's modification times."""
_OURS = re.compile(
    r"manifest\.json|shard-\d\d+|catalog-\d{20}\.cbor|held-\d{20}\.log|wal|wal-\d{20}\.log|topics|[0-9a-f]{16}|"
    r"seg-\d{20}\..+"
)
"""Names of data files and directories; an entry with such a name must be a regular file or a directory."""
_SHARD = re.compile(r"shard-\d\d+")


class BackupError(SupervisorError):
    """The backup or restore is not possible; the message says why. Only entries whose name ends in `.tmp` were
    written."""


Report = Callable[[int, int], None]
"""Called after each file with (bytes taken so far, bytes at the begin of the backup)."""


@dataclass(slots=True)
class Progress:
    """Progress of a backup: bytes and files so far."""

    copied_bytes: int = 0
    linked_bytes: int = 0
    files: int = 0
    attempts: int = 0
    total_bytes: int = 0
    """Bytes to take, counted when the backup began."""
    report: Report = lambda done, total: None
    strange: dict[Path, str] = field(default_factory=dict)
    """Entries left out since the last warnings, with their kind."""
    _known: dict[Path, tuple[int, int]] = field(default_factory=dict)
    _warned: set[Path] = field(default_factory=set)

    def left_out(self, found: NotPlain) -> None:
        """Record an entry that was left out. Raises `BackupError` if it has the name of a data file."""
        if _OURS.fullmatch(found.path.name):
            raise BackupError(
                f"{found}, and a backup follows no links: put what belongs there in its place (a directory on another "
                "disk can be mounted there), or remove it"
            ) from None
        if found.path not in self._warned:
            self._warned.add(found.path)
            self.strange[found.path] = found.kind

    def warnings(self) -> Iterator[dict[str, Any]]:
        for path, kind in self.strange.items():
            yield {"kind": "warning", "path": str(path), "message": f"{path} is {kind}: left out"}
        self.strange.clear()


def backup(
    data_dir: Path, cold_dir: Path | None, target: Path, report: Report = lambda done, total: None
) -> Iterator[dict[str, Any]]:
    """Add a backup to the directory `target`. Yields maps of kind `warning` and `progress`, and finally `done`.

    Raises `BackupError`, OSError.
    """
    _check_allowed(data_dir)
    make_dir(target)
    began_ns = time.time_ns()
    name = time.strftime("%Y%m%dT%H%M%S", time.gmtime(began_ns // 10**9)) + f".{began_ns // 10**6 % 1000:03d}Z"
    previous = next(reversed(backups(target)), None)
    making = target / f"{name}.tmp"
    make_dir(making)
    total = sum(bytes_of(top) for top in (data_dir, cold_dir) if top is not None)
    progress = Progress(total_bytes=total, report=report)
    with ExitStack() as opened:
        data = opened.enter_context(Folder.of(data_dir))
        cold = None if cold_dir is None or not cold_dir.exists() else opened.enter_context(Folder.of(cold_dir))
        try:
            with open(data.file(MANIFEST), "rb") as manifest:
                made = _identity(os.fstat(manifest.fileno()))
                copy_file(manifest.fileno(), making / MANIFEST)
        except NotPlain as error:
            progress.left_out(error)
        shards = [name for name in _entries(data, progress) if _SHARD.fullmatch(name)]
        yield from progress.warnings()
        for shard in shards:
            for _ in range(ATTEMPTS):
                progress.attempts += 1
                done = _take(data, cold, shard, making, previous, progress)
                yield from progress.warnings()
                if done:
                    break
                yield {"kind": "progress", "shard": shard, "again": True, **_figures(progress)}
            else:
                raise BackupError(
                    f"{shard} makes checkpoints faster than it can be copied; raise TOPICS_CHECKPOINT_INTERVAL_MS and "
                    f"TOPICS_CHECKPOINT_BYTES, or copy to a faster disk. Remove {making}"
                )
            yield {"kind": "progress", "shard": shard, "again": False, **_figures(progress)}
    if (data_dir / RESHARD_DECISION).exists() or _identity(os.lstat(data_dir / MANIFEST)) != made:
        raise BackupError(f"{data_dir} was resharded meanwhile: make the backup again. Remove {making}")
    mark = {"format": FORMAT, "begun_ns": began_ns, "made_ns": time.time_ns(), "data_dir": str(data_dir.resolve())}
    with open(making / MARK, "w") as file:
        json.dump(mark, file)
    sync_tree(making)
    os.rename(making, target / name)
    sync(target)
    yield {"kind": "done", "path": str(target / name), **_figures(progress)}


def _check_allowed(data_dir: Path) -> None:
    """Raises `BackupError` if a data directory cannot be backed up."""
    if not (data_dir / MANIFEST).exists():
        raise BackupError(f"{data_dir} is no data directory: it has no {MANIFEST}")
    if (data_dir / RESHARD_DECISION).exists():
        raise BackupError(f"{data_dir} is being resharded; let `topics reshard` finish first")
    if (data_dir / MACHINE).exists():
        raise BackupError(
            f"{data_dir} is of one of several machines, and may lack shards: their bucket has all. If it is the only "
            f"machine now, remove {MACHINE} while the service is stopped"
        )


def _identity(found: os.stat_result) -> tuple[int, int, int]:
    """Differs between a file and the one that takes its name, even with the same content."""
    return found.st_ino, found.st_mtime_ns, found.st_size


def backups(target: Path) -> list[Path]:
    """The complete backups in a directory of backups, oldest first."""
    return sorted(path.parent for path in target.glob(f"*/{MARK}") if path.parent.suffix != ".tmp")


def bytes_of(top: Path, leave_out: Container[str] = ()) -> int:
    """Bytes of all regular files in a directory, but those of entries of `top` to leave out; approximate while the
    service runs."""
    found = 0
    for directory, folders, names in os.walk(top):
        left_out = leave_out if Path(directory) == top else ()
        folders[:] = [name for name in folders if name not in left_out]
        for name in names:
            try:
                entry = os.lstat(Path(directory, name))
            except FileNotFoundError:
                continue
            found += entry.st_size if stat.S_ISREG(entry.st_mode) and name not in left_out else 0
    return found


def _entries(folder: Folder, progress: Progress) -> list[str]:
    """Sorted names of the files and directories in a folder. Other entries are recorded, or raise `BackupError`."""
    found = []
    for name in folder.names():
        try:
            mode = folder.mode(name)
        except FileNotFoundError:
            continue
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            found.append(name)
        else:
            progress.left_out(NotPlain(folder.path / name, mode))
    return found


def _take(
    data: Folder, cold: Folder | None, shard: str, making: Path, previous: Path | None, progress: Progress
) -> bool:
    """Copy one shard. Returns False if it must be copied again. Raises `BackupError`."""
    place = Path(shard)
    taking = _Taking(making, previous, progress)
    try:
        with data.folder(shard) as folder:
            lineage = _lineage(folder)
            names = _entries(folder, progress)
            number = _newest(names)
            # The log is copied last, so that frames appended meanwhile are in the backup too. Its files are copied in
            # order, so that only its end is torn.
            taking.topics(folder, place)
            if cold is not None and (colder := cold.folder_if_any(shard)) is not None:
                with colder:
                    taking.topics(colder, Path(COLD) / shard)
            for name in names:
                if number is not None and name == _catalog(number):
                    taking.bring(folder, name, place / name)
            if "wal" in names:
                with folder.folder("wal") as log:
                    for name in _entries(log, progress):
                        if name.endswith(".log"):
                            taking.bring(log, name, place / "wal" / name)
            taking.forget_others([place, Path(COLD) / shard])
            now = _newest(folder.names())
            if _lineage(folder) != lineage:
                return False
    except NotPlain as error:
        progress.left_out(error)
        return False
    return now == number if number is None else now is not None and number <= now <= number + 1


def _lineage(shard: Folder) -> str:
    """Which files a shard has that follows a bucket; other ones when they are made again from the bucket. Raises
    `BackupError` while that lasts."""
    try:
        with open(shard.file(BUCKET), "rb") as file:
            mark = json.load(file)
        found, incomplete = str(mark["lineage"]), bool(mark["incomplete"])
    except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError, NotPlain):
        return ""  # a service takes a damaged mark for none, too
    if incomplete:
        raise BackupError(
            f"{shard.path} is being made again from its bucket: make the backup when that is done, or of the machine "
            "that holds the shard"
        )
    return found


def _catalog(number: int) -> str:
    return f"catalog-{number:020d}.cbor"


def _newest(names: list[str]) -> int | None:
    """The number of the newest catalog."""
    numbers = [name.removeprefix("catalog-").removesuffix(".cbor") for name in names if name.startswith("catalog-")]
    return max((int(number) for number in numbers if number.isdecimal()), default=None)


@dataclass(slots=True)
class _Taking:
    """One pass through a shard: copies files and records their names."""

    making: Path
    previous: Path | None
    progress: Progress
    _seen: set[Path] = field(default_factory=set)

    def topics(self, shard: Folder, place: Path) -> None:
        """Copy everything in `topics/` of a shard."""
        if (topics := shard.folder_if_any("topics")) is None:
            return
        with topics:
            for ident in _entries(topics, self.progress):
                try:
                    topic = topics.folder_if_any(ident)
                except NotPlain as error:
                    self.progress.left_out(error)
                    continue
                if topic is None:
                    continue  # deleted meanwhile
                with topic:
                    for name in _entries(topic, self.progress):
                        self.bring(topic, name, place / "topics" / ident / name)

    def bring(self, folder: Folder, name: str, relative: Path) -> None:
        """Copy or link one file. A file that is gone by now is skipped: either the catalog does not need it, or `_take`
        returns False."""
        making, previous, progress = self.making, self.previous, self.progress
        target = making / relative
        try:
            descriptor = folder.file(name)
        except FileNotFoundError:
            return
        except NotPlain as error:
            progress.left_out(error)
            return
        with open(descriptor, "rb") as source:
            found = os.fstat(descriptor)
            state = (found.st_size, found.st_mtime_ns)
            if progress._known.get(relative) == state and target.exists():
                self._seen.add(relative)
                return
            target.unlink(missing_ok=True)
            make_dir(target.parent)
            if previous is not None and _same(previous / relative, state, previous):
                os.link(previous / relative, target, follow_symlinks=False)
                progress.linked_bytes += found.st_size
            else:
                copy_file(source.fileno(), target, found.st_size)
                os.utime(target, ns=(found.st_mtime_ns, found.st_mtime_ns))
                progress.copied_bytes += found.st_size
        if time.time_ns() - found.st_mtime_ns > _SETTLED_NS:
            progress._known[relative] = state
        progress.files += 1
        progress.report(progress.copied_bytes + progress.linked_bytes, progress.total_bytes)
        self._seen.add(relative)

    def forget_others(self, places: list[Path]) -> None:
        """Remove files that an earlier pass copied and this one did not see."""
        for place in places:
            for path in list((self.making / place).rglob("*")):
                if path.is_file() and path.relative_to(self.making) not in self._seen:
                    path.unlink()


def _same(old: Path, state: tuple[int, int], previous: Path) -> bool:
    try:
        found = old.lstat()
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(found.st_mode):
        return False
    begun = int(json.loads(read(previous / MARK))["begun_ns"])
    return (found.st_size, found.st_mtime_ns) == state and state[1] < begun - _SETTLED_NS


def copy_file(source: int, target: Path, size: int | None = None) -> None:
    """Copy the first `size` bytes of a descriptor, all by default. Does not sync: files are synced together at the end,
    because the pass through a shard must be quick."""
    with open(target, "xb", opener=_private) as written:
        left = os.fstat(source).st_size if size is None else size
        while left and (count := os.sendfile(written.fileno(), source, None, left)):
            left -= count


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def make_dir(path: Path) -> None:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def sync_tree(top: Path) -> None:
    for directory, _, names in os.walk(top):
        for name in names:
            if os.stat(Path(directory, name)).st_nlink == 1:  # linked files were synced with the previous backup
                sync(Path(directory, name))
        sync(Path(directory))


def _figures(progress: Progress) -> dict[str, int]:
    names = ("files", "copied_bytes", "linked_bytes", "attempts", "total_bytes")
    return {name: getattr(progress, name) for name in names}
