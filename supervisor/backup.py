"""Backups of a data directory, while the service runs or not. `restore` is the way back.

    DIR/<UTC time>/backup.json             when it was begun and made, and what of
    DIR/<UTC time>/manifest.json, shard-NN/…, cold/shard-NN/…      as in the data directory, the cold folder

A backup is made under a name that ends in `.tmp` and renamed when it is whole and synced: what has its final name is a
backup, whatever died. The service takes no part in it, and need not wait for it.

Each shard is cut at a moment of its own, after the backup was begun: with the newest catalog C, everything that C
refers to, and the log as far as it has come, whose torn end recovery cuts off. All of that stays, and no file is ahead
of C, until the checkpoint after the next one: should that have happened meanwhile, the shard is gone through again,
which copies only what has changed.

Files are copied: a hard link would show the deletions that the service makes in its segments later. Between backups,
which never change, they are linked: what has the size and the time of the last backup's takes no room and no time. A
file that was changed just before that backup began is not trusted to that: times of files have steps.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MARK = "backup.json"
MANIFEST = "manifest.json"
COLD = "cold"
ATTEMPTS = 10
_SETTLED_NS = 200_000_000
"""Longer than the steps of any clock that a file system takes its times from."""


class BackupError(Exception):
    """It cannot be done; the text says why. Nothing has changed but files whose name ends in `.tmp`."""


Moved = Callable[[int, int], None]
"""Called with (bytes taken, bytes there were at the beginning), file by file."""


@dataclass(slots=True)
class Progress:
    """Bytes and files, so far."""

    copied_bytes: int = 0
    linked_bytes: int = 0
    files: int = 0
    attempts: int = 0
    total_bytes: int = 0
    """What there was when it was begun."""
    moved: Moved = lambda done, total: None
    _known: dict[Path, tuple[int, int]] = field(default_factory=dict)


def backup(
    data_dir: Path, cold_dir: Path | None, target: Path, moved: Moved = lambda done, total: None
) -> Iterator[dict[str, Any]]:
    """Add a backup to the directory `target`. Yields `progress` and at last `done`. Raises `BackupError`, OSError."""
    if not (data_dir / MANIFEST).exists():
        raise BackupError(f"{data_dir} is no data directory: it has no {MANIFEST}")
    if (data_dir / "reshard.json").exists():
        raise BackupError(f"{data_dir} is being resharded; let `topics reshard` finish first")
    make_dir(target)
    began_ns = time.time_ns()
    name = time.strftime("%Y%m%dT%H%M%S", time.gmtime(began_ns // 10**9)) + f".{began_ns // 10**6 % 1000:03d}Z"
    earlier = backups(target)
    previous = earlier[-1] if earlier else None
    making = target / f"{name}.tmp"
    make_dir(making)
    progress = Progress(total_bytes=_bytes_of(data_dir, cold_dir), moved=moved)
    copy_file(data_dir / MANIFEST, making / MANIFEST)
    for shard in sorted(path.name for path in data_dir.glob("shard-*")):
        roots = [(data_dir / shard, Path(shard))]
        if cold_dir is not None and (cold_dir / shard).exists():
            roots.append((cold_dir / shard, Path(COLD) / shard))
        for _ in range(ATTEMPTS):
            progress.attempts += 1
            if _take(roots, making, previous, progress):
                break
            yield {"kind": "progress", "shard": shard, "again": True, **_figures(progress)}
        else:
            raise BackupError(
                f"{shard} makes checkpoints faster than it can be copied; raise TOPICS_CHECKPOINT_INTERVAL_MS and "
                f"TOPICS_CHECKPOINT_BYTES, or copy to a faster disk. Remove {making}"
            )
        yield {"kind": "progress", "shard": shard, "again": False, **_figures(progress)}
    mark = {"format": 1, "begun_ns": began_ns, "made_ns": time.time_ns(), "data_dir": str(data_dir.resolve())}
    with open(making / MARK, "w") as file:
        json.dump(mark, file)
    sync_tree(making)
    os.rename(making, target / name)
    sync(target)
    yield {"kind": "done", "path": str(target / name), **_figures(progress)}


def backups(target: Path) -> list[Path]:
    """The whole backups in a directory of them, oldest first."""
    return sorted(path.parent for path in target.glob(f"*/{MARK}") if path.parent.suffix != ".tmp")


def _bytes_of(data_dir: Path, cold_dir: Path | None) -> int:
    """About how much there is to take."""
    found = 0
    for top in (data_dir, cold_dir):
        for path in [] if top is None else top.glob("shard-*/**/*"):
            try:
                found += path.stat().st_size if path.is_file() else 0
            except FileNotFoundError:
                continue
    return found


def _take(roots: list[tuple[Path, Path]], making: Path, previous: Path | None, progress: Progress) -> bool:
    """Go through one shard; False if it has to be done again."""
    shard, place = roots[0]
    catalogs = _catalogs(shard)
    number = catalogs[-1] if catalogs else None
    seen: set[Path] = set()
    # The log last: what it has gained meanwhile is in the backup too. In its own order, so that only its end is torn.
    for root, where in roots:
        for path in sorted(root.rglob("topics/*/*")):
            _bring(path, where / path.relative_to(root), making, previous, progress, seen)
    for path in sorted(shard.glob("catalog-*.cbor")):
        if number is not None and path.name == f"catalog-{number:020d}.cbor":
            _bring(path, place / path.name, making, previous, progress, seen)
    for path in sorted(shard.glob("wal/*.log")):
        _bring(path, place / "wal" / path.name, making, previous, progress, seen)
    for _, where in roots:
        for path in list((making / where).rglob("*")):
            if path.is_file() and path.relative_to(making) not in seen:
                path.unlink()
    now = _catalogs(shard)
    return now == catalogs if number is None else bool(now) and now[-1] <= number + 1


def _catalogs(shard: Path) -> list[int]:
    return sorted(int(path.stem.removeprefix("catalog-")) for path in shard.glob("catalog-*.cbor"))


def _bring(
    path: Path, relative: Path, making: Path, previous: Path | None, progress: Progress, seen: set[Path]
) -> None:
    """One file, by copy or by link. One that is gone by now is nothing that the catalog needs, or `_take` says so."""
    target = making / relative
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    state = (found.st_size, found.st_mtime_ns)
    if progress._known.get(relative) == state and target.exists():
        seen.add(relative)
        return
    target.unlink(missing_ok=True)
    make_dir(target.parent)
    if previous is not None and _same(previous / relative, state, previous):
        os.link(previous / relative, target)
        progress.linked_bytes += found.st_size
    else:
        try:
            copy_file(path, target, found.st_size)
        except FileNotFoundError:
            return
        os.utime(target, ns=(found.st_mtime_ns, found.st_mtime_ns))
        progress.copied_bytes += found.st_size
    if time.time_ns() - found.st_mtime_ns > _SETTLED_NS:
        progress._known[relative] = state
    progress.files += 1
    progress.moved(progress.copied_bytes + progress.linked_bytes, progress.total_bytes)
    seen.add(relative)


def _same(old: Path, state: tuple[int, int], previous: Path) -> bool:
    try:
        found = old.stat()
    except FileNotFoundError:
        return False
    begun = int(json.loads((previous / MARK).read_text())["begun_ns"])
    return (found.st_size, found.st_mtime_ns) == state and state[1] < begun - _SETTLED_NS


def copy_file(source: Path, target: Path, size: int | None = None) -> None:
    """The first `size` bytes; all by default. Synced later, all together: going through a shard must be quick."""
    with open(source, "rb") as read, open(target, "xb", opener=_private) as written:
        left = os.fstat(read.fileno()).st_size if size is None else size
        while left and (count := os.sendfile(written.fileno(), read.fileno(), None, left)):
            left -= count


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def make_dir(path: Path) -> None:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def sync_tree(top: Path) -> None:
    for directory, _, names in os.walk(top):
        for name in names:
            if os.stat(Path(directory, name)).st_nlink == 1:  # a link's bytes were synced with the backup before
                sync(Path(directory, name))
        sync(Path(directory))


def sync(path: Path) -> None:
    """A file or a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _figures(progress: Progress) -> dict[str, int]:
    return {
        "files": progress.files,
        "copied_bytes": progress.copied_bytes,
        "linked_bytes": progress.linked_bytes,
        "attempts": progress.attempts,
        "total_bytes": progress.total_bytes,
    }
