"""Reshard: changes the number of shards of a data directory while the service is stopped.

    reshard/shard-NN    the new shards, while they are made
    reshard/old-NN      the old shards, after they have been replaced
    reshard.json        {"shards": N}: the new shards are whole; from now on the only way is forward

1  make       reshard/ is emptied; copies of routers that no file has are made again, in memory; every topic and watch
               session is copied into its new shard, topics a piece at a time; synced
2  decide     reshard.json: written, synced, renamed, directory synced
3  exchange   for each shard: the old one is moved aside, the new one to its place; directories synced
4  manifest   gets the new number
5  clean up   reshard/ removed, then reshard.json

If the process or the machine dies in step 1, the data directory is unchanged and the next attempt starts over. From
step 2 on the next attempt continues, regardless of the number it asks for, and the service refuses to start before. An
interrupted exchange may leave a shard under both names. The next attempt exchanges it again, with the same result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from proto.model.limits import Limits
from proto.model.names import shard_of
from shardd.checkpoint.checkpoint import Checkpoints
from shardd.checkpoint.slices import exhaust
from shardd.checkpoint.snapshot import FIELDS, dump, exact, load
from shardd.clock import Clock
from shardd.offline.offline_routers import Routers
from shardd.offline.verify import opened
from shardd.recovery.wal_scan import RecoveryError
from shardd.replication.attach import ASIDE
from shardd.shard import Shard
from shardd.storage.batch import FINAL_LEVEL, Batch
from shardd.storage.disk import Disk, write_all
from shardd.storage.errors import Exhausted, SegmentError
from shardd.storage.owner import SHARD, Owner, owner_of
from shardd.topic.directory import Directory
from shardd.topic.topic import Topic

PIECE_BYTES = 32 << 20
STAGING = "reshard"
DECISION = "reshard.json"
MANIFEST = "manifest.json"
MACHINE = "machine.json"

NOT_COPIED = frozenset({"head_seq", "floor", "reserved_in", "routers", "as_of"})
"""Fields that a copy of a topic does not get from a snapshot. The positions follow its records, its lane is that of the
original, whose copies are all there, and no log of another shard has its frames."""
COPIED = frozenset(field.name for field in FIELDS) - NOT_COPIED
Progress = Callable[[int, int], None]
"""Called with (records copied, records in all)."""


def shard_name(index: int) -> str:
    return f"shard-{index:02d}"


class Reshard:
    def __init__(self, disk: Disk, data: Path, clock: Clock, limits: Limits) -> None:
        self._disk = disk
        self._data = data
        self._staging = data / STAGING
        self._clock = clock
        self._limits = limits

    def run(self, shards: int, progress: Progress = lambda done, total: None) -> int:
        """Change the directory to `shards` shards, or finish an earlier attempt that had decided. Returns the number.

        Blocks. Raises `RecoveryError` for shards that cannot be read, OSError. The next attempt then continues.
        """
        manifest = json.loads(bytes(self._disk.read(self._data / MANIFEST)))
        if DECISION in self._disk.list(self._data):
            shards = int(json.loads(bytes(self._disk.read(self._data / DECISION)))["shards"])
            self._disk.sync_dir(self._data)  # the earlier process may have been killed before this sync
        elif shards == manifest["shards"]:
            self._disk.remove_tree(self._staging)
            return shards
        else:
            self._make(manifest["shards"], shards, progress)
            self._write_json(DECISION, {"shards": shards})
        self._exchange(shards)
        self._write_json(MANIFEST, {**manifest, "shards": shards})
        self._disk.remove_tree(self._staging)
        self._remove_cold()
        self._disk.remove(self._data / DECISION)
        self._disk.sync_dir(self._data)
        return shards

    # 1

    def _make(self, old: int, new: int, progress: Progress) -> None:
        if MACHINE in self._disk.list(self._data):
            raise RecoveryError(
                f"{self._data} is of one of several machines, and may lack shards: make a directory with all of them "
                "by `topics restore --from` the bucket, and change that one. If this is the only machine now, remove "
                f"{MACHINE}"
            )
        self._check_names(old)
        self._disk.remove_tree(self._staging)
        sources = [opened(self._disk, self._data / shard_name(i), self._clock, self._limits) for i in range(old)]
        for source in sources:
            self._check_source(source)
        Routers(sources).derive()
        total = sum(source.directory.counters()[1] for source in sources)
        copied = 0
        # Ids start above every earlier id and epoch, so that a later topic of an old name has a higher epoch.
        first_id = max(source.directory.next_id for source in sources)
        service = owner_of(self._disk, self._data / shard_name(0)).service
        limits = msgspec.structs.replace(self._limits, cold_dir="", cache_bytes=0)
        for index in range(new):
            path = self._staging / shard_name(index)
            directory = Directory()
            directory.used_id(first_id - 1)
            owner = Owner(service, index)
            target = Checkpoints(self._disk, path, directory, self._clock, limits, owner)
            self._disk.make_dir(path)
            for source in sources:
                directory.logs |= {log: n for log, n in source.directory.logs.items() if shard_of(log, new) == index}
                for topic in source.directory.visible.values():
                    if shard_of(topic.name, new) == index:
                        copied += self._copy(topic, target, directory)
                        progress(copied, total)
                directory.sessions.load(s for s in source.directory.sessions.dump() if shard_of(s["wid"], new) == index)
            self._checkpoint(target)
            self._disk.sync_dir(self._staging)
        self._disk.sync_dir(self._data)

    def _check_names(self, old: int) -> None:
        """Raises `RecoveryError` if there is anything else that is named as what is removed in the end."""
        ours = {shard_name(index) for index in range(old)}
        for folder in (self._data, *([Path(self._limits.cold_dir)] if self._limits.cold_dir else [])):
            for name in self._disk.list(folder):
                if name.startswith("shard-") and name not in ours:
                    raise RecoveryError(
                        f"{folder / name} is none of the {old} shards of {MANIFEST}: find out where it belongs, and "
                        "move it to another folder first"
                    )

    def _check_source(self, source: Shard) -> None:
        """Raises `RecoveryError` if the shard has what the new shards would not get."""
        for topic in source.directory.visible.values():
            if topic.damage is not None:
                raise RecoveryError(f'topic "{topic.name}" is damaged ({topic.damage.reason}): salvage it first')
            refuse_waiting(topic)
        inventory = source.checkpoints.inventory
        apart = [*inventory.lost(), *source.checkpoints.strays(source.directory.by_id)]
        for base in filter(None, (inventory.path, inventory.cold)):
            apart += [base / name for name in self._disk.list(base) if name.startswith(ASIDE)]
        if apart:
            raise RecoveryError(
                f"{apart[0]} does not belong to this shard, whose directory is removed in the end: find out where "
                "it belongs, and move it out of the data directory first"
            )

    def _copy(self, topic: Topic, target: Checkpoints, directory: Directory) -> int:
        copy = copied_topic(topic, directory.new_id())
        directory.show(copy)
        copy.position.logged_upto(topic.records.head_seq)
        for batch in in_pieces(topic, lambda: self._checkpoint(target)):
            try:
                copy.records.restore(copied_batch(batch))
            except SegmentError as error:
                raise _unread(topic, error) from error
        copy.restored(topic.records.head_seq, topic.records.floor)
        return topic.records.count

    def _checkpoint(self, target: Checkpoints) -> None:
        plan = exhaust(target.planner.planning(lambda: 0))
        target.writer.write(plan)
        exhaust(target.adopter.adopting(plan))

    # 3

    def _exchange(self, new: int) -> None:
        names = {*self._disk.list(self._data), *self._disk.list(self._staging)}
        for name in sorted(filter(SHARD.fullmatch, names)):
            fresh = name in self._disk.list(self._staging)
            if name in self._disk.list(self._data) and (fresh or int(name[6:]) >= new):
                aside = self._staging / f"old-{name[6:]}"
                self._disk.remove_tree(aside)
                self._rename(self._data / name, aside)
            if fresh:
                self._rename(self._staging / name, self._data / name)
        self._disk.sync_dir(self._data)
        if self._staging.name in self._disk.list(self._data):  # else an attempt that died in step 5 removed it
            self._disk.sync_dir(self._staging)

    def _rename(self, source: Path, target: Path) -> None:
        self._disk.replace(source, target)
        self._disk.sync_dir(target.parent)
        self._disk.sync_dir(source.parent)

    # 5

    def _remove_cold(self) -> None:
        """Remove the cold folders of the old shards. The new shards have all files in the data directory."""
        if self._limits.cold_dir:
            cold = Path(self._limits.cold_dir)
            for name in filter(SHARD.fullmatch, self._disk.list(cold)):
                self._disk.remove_tree(cold / name)

    def _write_json(self, name: str, fields: dict[str, Any]) -> None:
        path = self._data / name
        temporary = path.with_name(name + ".tmp")
        content = json.dumps(fields).encode() + b"\n"
        with closing(self._disk.create(temporary)) as file:
            write_all(file, content, path)
            file.sync()
        self._disk.replace(temporary, path)
        self._disk.sync_dir(self._data)


def refuse_waiting(topic: Topic) -> None:
    """Raises `RecoveryError` if a topic waits for copies."""
    if topic.deferred:
        raise RecoveryError(
            f'topic "{topic.name}" waits for copies that its routers have to make again; start the service once, stop '
            "it gracefully, and try again"
        )


def _unread(topic: Topic, error: SegmentError) -> RecoveryError:
    """What ends an attempt when a topic's records cannot be read."""
    if isinstance(error, Exhausted):
        return RecoveryError(f"{error}: raise the limit of open files, or free memory, and try again")
    return RecoveryError(f'topic "{topic.name}" is damaged ({error}): salvage it first')


def copied_topic(topic: Topic, ident: int) -> Topic:
    """A copy of a topic under another id, without its records. Call its `restored` when they have been added."""
    copy = Topic(topic.name, ident, topic.epoch, topic.config)
    load(copy, dump(topic, exact(topic)), COPIED)
    copy.lane = copy.lane_visible = topic.lane_visible
    return copy


def in_pieces(topic: Topic, store: Callable[[], None]) -> Iterator[Batch]:
    """The batches of a topic, to be copied one by one. Calls `store` when `PIECE_BYTES` of them have been copied."""
    size = 0
    for batch in topic.records.batches:
        yield batch
        size += batch.size
        if size >= PIECE_BYTES:
            store()
            size = 0


def copied_batch(batch: Batch) -> Batch:
    columns = batch.columns()
    buffer = batch.buffer
    if buffer is None:
        assert batch.stored is not None
        buffer = batch.stored.load()
    copy = Batch(bytes(buffer), batch.first_seq, columns, FINAL_LEVEL)
    if batch.flags is not None:
        copy.flag(batch.delete_flags())
    return copy
