"""Restore: makes a data directory from a backup, complete or with topics cut at a seq or a time.

    DATA_DIR.tmp, COLD_DIR.tmp     made from the backup, cut if requested (`shardd.offline.rewind`), synced
    DATA_DIR.tmp/restored.json     written next: source and parameters; from here on the copy is complete
    COLD_DIR, DATA_DIR             renamed, in this order

The data directory gets its name only when it is complete, whichever process dies, and the backup is only read. The same
restore, run again, starts over; once `restored.json` exists, it completes the renaming. Another restore first removes
`restored.json`, then the copies. `restored.json` remains as a record of the data's source; the service does not read
it.

The source is a backup or a directory of backups. Of a directory, the newest backup is chosen, or, for a cut at a time,
the first that began after it. That backup has every record acknowledged up to the time, and the fewest later evictions
and deletions.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from proto.model.limits import Limits
from supervisor.backup import offline
from supervisor.backup.backup import COLD, FORMAT, MARK, BackupError, backups, bytes_of, copy_file, make_dir, sync_tree
from supervisor.process.datadir import LOCK, Manifest, sync, write_manifest
from supervisor.process.safe_folder import Folder, NotPlain, read

WHOLE = "restored.json"
RESERVE = 65_536
PROGRESS_BYTES = 16 << 20
FOREVER_MS = 1 << 62
"""A cut at this time removes nothing and only reserves seqs."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """Where topics are cut: `seqs` and `times` (ms since 1970) by topic, all others at `until_ms`; None: not cut."""

    seqs: dict[str, int] = field(default_factory=dict)
    times: dict[str, int] = field(default_factory=dict)
    until_ms: int | None = None
    reserve: int = RESERVE

    def __bool__(self) -> bool:
        return bool(self.seqs or self.times or self.until_ms is not None)

    @property
    def latest_ms(self) -> int | None:
        """The latest time of any cut, ms since 1970, or None. The backup must have begun after it."""
        times = [ms for ms in (*self.times.values(), self.until_ms) if ms is not None and ms != FOREVER_MS]
        return max(times, default=None)


def parse_cuts(until: list[str], until_seq: list[str], reserve: int | None, *, of_bucket: bool = False) -> Cuts:
    """Parse the options `TIME`, `TOPIC=TIME` and `TOPIC=SEQ`. A `reserve` applies to all topics, also to those that are
    not cut; so does that of a restore from a bucket, whose readers may have seen records that it lacks.

    Raises `ValueError` with a message for the user.
    """
    seqs: dict[str, int] = {}
    times: dict[str, int] = {}
    until_ms = None
    for text in until:
        name, equals, moment = text.rpartition("=")
        if not equals and until_ms is not None:
            raise ValueError(f"--until {text}: there is one for all topics already; write TOPIC=TIME for a single one")
        if equals:
            times[name] = parse_time(moment)
        else:
            until_ms = parse_time(moment)
    for text in until_seq:
        name, equals, number = text.rpartition("=")
        if not equals or not name or not number.isdecimal():
            raise ValueError(f"--until-seq {text}: must be TOPIC=SEQ, the last seq to keep")
        if name in times:
            raise ValueError(f'topic "{name}" has both a time and a seq; give one')
        seqs[name] = int(number)
    if until_ms is None and (of_bucket or reserve is not None):
        until_ms = FOREVER_MS
    return Cuts(seqs, times, until_ms, RESERVE if reserve is None else reserve)


def parse_time(text: str) -> int:
    """ms since 1970 of an ISO 8601 time with a zone, or of a number of ms. Raises `ValueError`."""
    if text.isdecimal():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no time; write it like 2026-11-21T10:00:00Z, or as ms since 1970") from None
    if found.tzinfo is None:
        raise ValueError(f"{text} has no time zone; add Z for UTC, or +02:00, say")
    since = found - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


def restore(
    source: Path, data_dir: Path, cold_dir: Path | None, cuts: Cuts, limits: Limits
) -> Iterator[dict[str, Any]]:
    """Make a data directory. Yields maps of kind `progress` (bytes), `problem`, `cut` for each topic, and finally
    `done`.

    Raises `BackupError`, `DataDirError`, OSError.
    """
    chosen = _choose(source, cuts.latest_ms)
    _refuse_newer(chosen)
    cold = chosen / COLD
    if cold.exists() and cold_dir is None:
        raise BackupError(f"{chosen} has segments of a cold folder; set TOPICS_COLD_DIR to where they shall go")
    target = cold_dir if cold.exists() else None
    asked = {"backup": str(chosen.resolve()), "cold_dir": str(target) if target else None, "cuts": asdict(cuts)}
    making = partial(_make, chosen, data_dir, target, cuts, limits)
    yield from _named(data_dir, target, asked, making)
    yield {"kind": "done", "backup": str(chosen), "data_dir": str(data_dir)}


def restore_bucket(
    url: str, data_dir: Path, cold_dir: Path | None, cuts: Cuts, limits: Limits
) -> Iterator[dict[str, Any]]:
    """As `restore`, from a bucket."""
    asked = {"bucket": url, "cold_dir": str(cold_dir) if cold_dir else None, "cuts": asdict(cuts)}
    yield from _named(data_dir, cold_dir, asked, partial(_fetch, url, data_dir, cold_dir, cuts, limits))
    yield {"kind": "done", "backup": url, "data_dir": str(data_dir)}


def _named(
    data_dir: Path, target: Path | None, asked: dict[str, Any], make: Callable[[], Iterator[dict[str, Any]]]
) -> Iterator[dict[str, Any]]:
    """Make the copies, unless the same restore has made them already, and give them their names."""
    if data_dir.exists() and any(data_dir.iterdir()):
        raise BackupError(f"{data_dir} is not empty; give another --data-dir, or move it away")
    making = _making(data_dir)
    if _whole(making) != asked:
        if target is not None and target.exists() and any(target.iterdir()):
            raise BackupError(f"TOPICS_COLD_DIR={target} is not empty; name another folder, or move it away")
        yield from make()
        _mark(making, asked)
    if target is not None and _making(target).exists():
        os.rename(_making(target), target)
        sync(target.parent)
    os.rename(making, data_dir)  # onto nothing or an empty directory
    sync(data_dir.parent)


def _choose(source: Path, latest_ms: int | None) -> Path:
    candidates = [source] if (source / MARK).exists() and source.suffix != ".tmp" else backups(source)
    if not candidates:
        raise BackupError(f"{source} has no whole backup (one has a {MARK} in it)")
    if latest_ms is None:
        return candidates[-1]
    begun = {path: int(json.loads(read(path / MARK))["begun_ns"]) // 10**6 for path in candidates}
    for path in candidates:
        if begun[path] > latest_ms:
            return path
    last = datetime.fromtimestamp(begun[candidates[-1]] / 1000, UTC).isoformat(timespec="milliseconds")
    raise BackupError(
        f"{candidates[-1]} was begun at {last}, so it need not have all records up to the time that was asked for; "
        "take a later backup, or an earlier time"
    )


def _refuse_newer(backup: Path) -> None:
    """Raises `BackupError` if this release does not know the backup's format. A mark that cannot be read says
    nothing."""
    try:
        found = json.loads(read(backup / MARK))["format"]
    except (ValueError, KeyError, TypeError):
        return
    if found != FORMAT:
        raise BackupError(
            f"{backup / MARK} has format {found!r}, this release knows {FORMAT}: use the release that wrote it"
        )


def _make(chosen: Path, data_dir: Path, target: Path | None, cuts: Cuts, limits: Limits) -> Iterator[dict[str, Any]]:
    trees = [(chosen, _making(data_dir), {COLD, MARK})]
    if target is not None:
        trees.append((chosen / COLD, _making(target), set()))
    total = done = said = 0
    for top, making, leave_out in trees:
        _remove(making)
        total += bytes_of(top, leave_out)
    for top, making, leave_out in trees:
        with Folder.of(top) as folder:
            try:
                for copied in _copy(folder, making, leave_out):
                    done += copied
                    if done - said >= PROGRESS_BYTES or done == total:
                        said = done
                        yield {"kind": "progress", "done": done, "total": total}
            except NotPlain as error:
                raise BackupError(f"{error}: a backup has only regular files; take another one") from None
    yield from _finish(data_dir, target, cuts, limits)


def _finish(data_dir: Path, target: Path | None, cuts: Cuts, limits: Limits) -> Iterator[dict[str, Any]]:
    """Cut the topics of the copies, and sync these."""
    if cuts:
        # No other process uses the copies, so they may be in any state meanwhile. A configured cold folder that is not
        # one of the copies must not be touched.
        limits = replace(limits, cold_dir="" if target is None else str(_making(target)))
        found = offline.results("cut", _making(data_dir), limits, cuts=asdict(cuts))
        yield from (each for each in _succeeding(found, "cutting the topics") if each["kind"] in ("cut", "problem"))
        (_making(data_dir) / LOCK).unlink(missing_ok=True)
    for top in (data_dir, target):
        if top is not None:
            sync_tree(_making(top))


def _succeeding(results: Iterator[dict[str, Any]], what: str) -> Iterator[dict[str, Any]]:
    """Results of an offline command. Raises `BackupError` if it fails."""
    failed = ""
    for found in results:
        if found["kind"] == "error":
            failed = found["message"]
        elif found["kind"] == "exit" and found["status"]:
            raise BackupError(failed or f"{what} ended with status {found['status']}")
        elif found["kind"] != "exit":
            yield found


def _fetch(url: str, data_dir: Path, target: Path | None, cuts: Cuts, limits: Limits) -> Iterator[dict[str, Any]]:
    """Make the copies from a bucket. The log is taken up to the time that all topics are cut at."""
    for top in (data_dir, target):
        if top is not None:
            _remove(_making(top))
            make_dir(_making(top))
    until_ms = None if cuts.until_ms in (None, FOREVER_MS) else cuts.latest_ms
    limits = replace(limits, cold_dir="" if target is None else str(_making(target)))
    done = said = 0
    found = offline.of_bucket("fetch", limits, path=_making(data_dir), url=url, until_ms=until_ms)
    for each in _succeeding(found, "reading the bucket"):
        if each["kind"] == "progress":
            done += each["done"]
            if done - said >= PROGRESS_BYTES:
                said = done
                yield {"kind": "progress", "done": done, "total": 0}
        elif each["kind"] == "fetched":
            write_manifest(_making(data_dir), Manifest(each["shards"], each["created_ms"]))
        else:
            yield each
    yield from _finish(data_dir, target, cuts, limits)


def _copy(source: Folder, target: Path, leave_out: set[str]) -> Iterator[int]:
    """Copy a directory. Yields the bytes of each file. Raises `NotPlain` for other entries than files and
    directories."""
    make_dir(target)
    for name in source.names():
        if name in leave_out:
            continue
        if stat.S_ISDIR(source.mode(name)):
            with source.folder(name) as folder:
                yield from _copy(folder, target / name, set())
        else:
            with open(source.file(name), "rb") as file:
                copy_file(file.fileno(), target / name)
                yield os.fstat(file.fileno()).st_size


def _making(path: Path) -> Path:
    return path.with_name(path.name + ".tmp")


def _remove(making: Path) -> None:
    """Remove a copy, if there is one: first its mark, because it is not complete without all of its files. Raises
    OSError."""
    if (making / WHOLE).exists():
        (making / WHOLE).unlink()
        sync(making)
    if making.exists():
        shutil.rmtree(making)


def _whole(making: Path) -> Any:
    try:
        return json.loads((making / WHOLE).read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def _mark(making: Path, asked: dict[str, Any]) -> None:
    with open(making / WHOLE, "w") as file:
        json.dump(asked, file)
        file.flush()
        os.fsync(file.fileno())
    sync(making)
