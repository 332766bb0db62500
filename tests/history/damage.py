"""Bar 4: one file of a shard is damaged, at a draw of its kind, the damage, the place in the file and the moment.

    kind      catalog, log, segment, index, held frames
    damage    one bit, truncated, 512 zeros, missing, that of another shard, an earlier one, two of a kind swapped
    moment    while the shard is stopped, or while it serves

A draw is one life of the files of a world:

1  strike    the damage
2  use       if the shard runs: reads, writes, checkpoints. Files of a topic may be put back now
3  verify    of the stopped shard changes nothing, and knows of everything that the next steps refuse
4  start     it starts, or it names the file and has changed nothing
5  use       reads, writes, checkpoints
6  repair    the right bytes are put back, or the topic is salvaged; the next start serves everything
7  judge     the checker compares all that the client saw, from the first write of the world to the last read

Each answer in 2 and 5 is right, or a refusal of a topic whose file is damaged. Every topic stays, with its epoch. A
file that is intact and does not belong is still somewhere. The exception is the end of the newest log, where damage
looks like a loss of power (docs/design/damage.md): the log may then end before the damage, never earlier, and the
client's history ends there too.
"""

from __future__ import annotations

import io
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from proto.format.frame import FrameError, Header, check
from shardd.offline.salvage import salvage
from shardd.offline.verify import verify
from shardd.recovery.wal_scan import RecoveryError
from shardd.storage.errors import SegmentError
from tests.history.inside import Inside, Notes
from tests.history.worlds import COLD, CONFIGS, OURS, QUEUE, THEIRS, TRIMMED, World, killed, topics, work
from tests.support.fault_disk import FaultDisk, Node
from tests.support.harness import FakeClock, Harness
from tests.support.histories import written
from topics_history import format as f
from topics_history.checker import check_reader

PATTERNS = {
    "catalog": "catalog-*.cbor",
    "log": "wal/wal-*.log",
    "segment": "topics/*/seg-*.data",
    "index": "topics/*/seg-*.idx",
    "held frames": "topics/*/held-*.log",
}
OF_TOPICS = ("segment", "index", "held frames")
HOWS = ("one bit", "one bit", "truncated", "zeros", "missing", "another shard's", "an earlier one", "swapped")
SECTOR = 512
DRAWS_OF_A_WORLD = 50
LOOKS_AGAIN_MS = 61_000
"""A running shard looks at a damaged file again after a minute at most."""


def kind_of(path: Path) -> str:
    return next((kind for kind, pattern in PATTERNS.items() if path.match(pattern)), "")


def files_of(disk: FaultDisk) -> dict[str, list[Path]]:
    """The files of a shard by kind, those in lost+found not among them."""
    found: dict[str, list[Path]] = {}
    for path in sorted(disk.names):
        if (kind := kind_of(path)) and "lost+found" not in path.parts and disk.names[path].data:
            found.setdefault(kind, []).append(path)
    return found


def contents(disk: FaultDisk) -> dict[Path, bytes]:
    return {path: bytes(node.data) for path, node in disk.names.items()}


@dataclass(slots=True)
class Struck:
    """A file that was damaged: its bytes before and after, None if it is gone; `node` has what is written to it."""

    path: Path
    before: bytes
    after: bytes | None
    node: Node


class Damage:
    def __init__(self, world: World, rng: Random) -> None:
        self._world = world
        self._rng = rng
        kinds = files_of(world.disk)
        self.kind = rng.choice(sorted(kinds))
        self.how = rng.choice(HOWS)
        self.files: list[Struck] = []
        self.intact: list[bytes] = []
        """Contents that belong elsewhere, and are still somewhere in the end."""

    def strike(self, disk: FaultDisk) -> None:
        rng, kinds = self._rng, files_of(disk)
        self.kind = self.kind if self.kind in kinds else rng.choice(sorted(kinds))
        paths = kinds[self.kind]
        path = rng.choice(paths)
        if self.how == "swapped" and len(paths) > 1:
            other = rng.choice([each for each in paths if each != path])
            one, two = bytes(disk.names[path].data), bytes(disk.names[other].data)
            self._put(disk, path, two)
            self._put(disk, other, one)
            if self.kind != "log":  # their frames are those of this shard, and catalogs cover them
                self.intact = [one, two]
            return
        if self.how in ("swapped", "another shard's", "an earlier one"):
            whole, foreign = bytes(disk.names[path].data), self._foreign(disk, path)
            if foreign is not None:
                self._put(disk, path, foreign)
                # Nothing says of a log or a catalog that it is of another time. A segment whose frames are the same is
                # the file itself before its last delete flags, which are written again, as after a stop in between.
                if self.how != "an earlier one" or (
                    self.kind in OF_TOPICS and _unflagged(foreign) != _unflagged(whole)
                ):
                    self.intact = [foreign]
                return
            self.how = "missing"
        self._put(disk, path, self._spoilt(bytes(disk.names[path].data)))

    def _foreign(self, disk: FaultDisk, path: Path) -> bytes | None:
        """The content of another file of the kind, by preference of the same name."""
        there = self._world.older if self.how == "an earlier one" else self._world.theirs
        top, other = (OURS.name, OURS.name if there is self._world.older else THEIRS.name)
        twin = Path(*(other if part == top else part for part in path.parts))
        whole = bytes(disk.names[path].data)
        found = {each: bytes(there.names[each].data) for each in files_of(there).get(self.kind, [])}
        if found.get(twin, whole) != whole:
            return found[twin]
        rest = [content for content in found.values() if content != whole]
        return self._rng.choice(rest) if rest else None

    def _spoilt(self, whole: bytes) -> bytes | None:
        rng = self._rng
        at = rng.randrange(len(whole))
        if self.how == "one bit":
            return whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :]
        if self.how == "truncated":
            return whole[:at]
        if self.how == "zeros":
            at -= at % SECTOR
            length = min(SECTOR, len(whole) - at)
            return whole[:at] + bytes(length) + whole[at + length :]
        return None

    def _put(self, disk: FaultDisk, path: Path, content: bytes | None) -> None:
        node = disk.names[path]
        self.files.append(Struck(path, bytes(node.data), content, node))
        if content is None:
            del disk.names[path]
            disk.durable.pop(path, None)
        else:
            node.data[:] = content
            node.synced = content

    def repair(self, disk: FaultDisk) -> None:
        """Put the right bytes back, with what was written to the damaged files since: in place, and after their end. A
        file may have been moved to the cold tier, but not one that is missing: its copy there was made before."""
        self.intact = []
        for each in self.files:
            path = each.path
            if each.after is None:
                content = bytes(each.node.data)
            else:
                moved = COLD / path.relative_to(OURS.parent) if OURS in path.parents else path
                path = moved if moved in disk.names else path
                now = bytes(disk.names[path].data) if path in disk.names else b""
                content = _mended(each.before, each.after, now)
            disk.names[path] = disk.durable[path] = Node(bytearray(content), content)

    def owners(self) -> set[str]:
        """The topics that may be refused: those that a damaged file holds records of."""
        if self.kind not in ("segment", "held frames"):
            return set()
        return {self._world.names[int(each.path.parent.name, 16)] for each in self.files}

    def spares(self, disk: FaultDisk) -> int | None:
        """The last frame of the log that must survive. None if all must: the newest log is not damaged."""
        if self.kind != "log":
            return None
        logs = set(files_of(disk).get("log", [])) | {each.path for each in self.files}
        struck = next((each for each in self.files if each.path == max(logs)), None)
        if struck is None:
            return None
        after = struck.after or b""
        same = next((at for at, (a, b) in enumerate(zip(struck.before, after, strict=False)) if a != b), len(after))
        number = int(struck.path.stem.removeprefix("wal-")) - 1
        for header, end in _frames(struck.before):
            if end > same:
                return int(header.frame_no) - 1
            number = header.frame_no
        return number

    def __str__(self) -> str:
        return f"{self.kind}, {self.how}: {', '.join(str(each.path) for each in self.files)}"


def _mended(before: bytes, after: bytes, now: bytes) -> bytes:
    written = bytearray(before)
    for at, (old, new) in enumerate(zip(after, now, strict=False)):
        if old != new and at < len(before):
            written[at] = new
    cut = now[len(before) : len(after)] != after[len(before) :]  # what did not count was removed before the next write
    return bytes(written) + now[len(before if cut else after) :]


def _frames(file: bytes) -> Iterator[tuple[Header, int]]:
    """The header and the end of each frame."""
    at, view = 0, memoryview(file)
    while at < len(file):
        try:
            header = check(view, at)
        except FrameError:
            return
        at += header.length
        yield header, at


def _unflagged(file: bytes) -> list[bytes]:
    """The frames of a file without their delete flags; of another kind of file, itself."""
    found = [file[end - header.length : end - header.length + header.flags_at] for header, end in _frames(file)]
    return found or [file]


@dataclass(slots=True)
class Figures:
    """Counts of a run: what became of the draws, and the first failures."""

    draws: int = 0
    live: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    lost_frames: int = 0
    """Of the end of a log, at most."""
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        ends = ", ".join(f"{count} {end}" for end, count in self.ends.most_common())
        return (
            f"{self.draws} draws, {self.live} while it served: {ends}; at most {self.lost_frames} frames of an end "
            f"lost; {len(self.failures)} failures"
        )


class Wrong(Exception):
    """The shard did what it must not."""


class Trial:
    def __init__(self, world: World, seed: int, number: int) -> None:
        self.rng = rng = Random(f"{seed} draw {number}")
        self.world = world
        self.damage = Damage(world, rng)
        self.live = rng.random() < 0.5
        self.clock = FakeClock(world.clock.ms)
        self.notes = Notes(self.clock)
        self.notes.lines, self.notes.frames = list(world.notes.lines), list(world.notes.frames)
        self.notes.last_ns = world.notes.last_ns
        self.disk = world.disk.after_crash("process")
        self.client = Inside(self._open(), self.notes, "t", seed) if self.live else None
        self.refused: set[str] = set()
        self.salvaged: set[str] = set()
        self.end = "all served"
        self.lost_frames = 0

    def _open(self) -> Harness:
        return self.world.open(self.disk, clock=self.clock)

    def run(self) -> None:
        """Raises `Wrong`."""
        mended = False
        if self.client is not None:
            self.damage.strike(self.disk)
            self._use(self.client)
            if self.damage.kind in OF_TOPICS and self.rng.random() < 0.5:
                self.damage.repair(self.disk)
                self.clock.advance(LOOKS_AGAIN_MS)
                self._look(self.client, set())
                mended = True
            self.disk = killed(self.client.shard)
        else:
            self.damage.strike(self.disk)
        self._start(mended)
        self._judge()

    def _start(self, mended: bool) -> None:
        self.refused = set()
        before = contents(self.disk)
        report = verify(self.disk, OURS, self.clock, self.world.checked)
        if contents(self.disk) != before:
            raise Wrong("`verify` changes files")
        spared = self.damage.spares(self.disk)
        try:
            shard = self._open()
        except RecoveryError as error:
            self._refusal(str(error), before, mended, bool(report.problems))
            shard = self._open()
        else:
            self._cut(shard, spared)
        client = self.client = Inside(shard, self.notes, "u", self.rng.randrange(1 << 32))
        self._use(client)
        if self.refused:
            if mended:
                raise Wrong(f"after its repair, {self.refused} is refused")
            if not report.problems:
                raise Wrong(f"`verify` finds nothing, and {self.refused} is refused")
            self.disk = killed(shard)
            self._repair()
            client.shard = self._open()
        elif self.damage.intact and self.damage.kind != "index":
            there = contents(killed(shard)).values()
            if not all(any(each in content for content in there) for each in self.damage.intact):
                raise Wrong("a file that is intact was removed")
        self.refused = set()
        self._look(client, set())
        self.notes.write(f.Settled, "t", self.notes.now_ns(), "ok")
        self._look(client, set())

    def _refusal(self, text: str, before: dict[Path, bytes], mended: bool, known: bool) -> None:
        """The shard does not start. Put the right bytes back."""
        if mended:
            raise Wrong(f"after its repair, the shard does not start: {text}")
        if not any(str(each.path.parent) in text for each in self.damage.files):
            raise Wrong(f"the refusal names another file: {text}")
        if contents(self.disk) != before:
            raise Wrong("a refusal changes files")
        if not known:
            raise Wrong(f"`verify` finds nothing, and the shard does not start: {text}")
        self.end = "start refused"
        self.damage.repair(self.disk)

    def _cut(self, shard: Harness, spared: int | None) -> None:
        """The log may end early, if the end of the newest log is damaged: then what came later did not happen."""
        last_no = shard.shard.outcome.next_no - 1
        notes = self.notes
        lost = max(notes.frames, default=0) - last_no
        if lost <= 0:
            return
        if spared is None or last_no < spared:
            raise Wrong(f"the log ends at {last_no}, and frames up to {spared or last_no + lost} were whole")
        kept = next(at for at, frame_no in enumerate(notes.frames) if frame_no > last_no)
        del notes.lines[kept:], notes.frames[kept:]
        self.end, self.lost_frames = "end of the log lost", lost

    def _repair(self) -> None:
        (name, *others), self.end = sorted(self.refused), "topic refused"
        if others or name in (QUEUE, TRIMMED) or self.damage.kind == "held frames" or self.rng.random() < 0.5:
            self.damage.repair(self.disk)
            return
        limits = self.world.checked
        (found,) = salvage(self.disk, OURS, self.clock, limits, name)
        if found["kind"] != "salvaged":
            raise Wrong(f"{name} is refused, and `salvage` says {found}")
        self.salvaged.add(name)
        self.end = "topic salvaged"
        if problems := verify(self.disk, OURS, self.clock, limits).problems:
            raise Wrong(f"after the salvage, `verify` finds {problems}")

    def _use(self, client: Inside) -> None:
        may = self.damage.owners()
        self._look(client, may)
        for turn in range(3):
            for _ in range(4):
                work(client, self.rng, list(CONFIGS))
                self._take_refusal(client, may)
            client.shard.settle()
            try:
                client.shard.shard.checkpoint_now()
            except (OSError, SegmentError) as error:
                if turn == 2:
                    raise Wrong(f"checkpoints fail: {error}") from error
        self._look(client, may)

    def _take_refusal(self, client: Inside, may: set[str], topic: str = "") -> bool:
        """Whether the last request was refused. Only a damaged topic is, and only for its damage."""
        error = client.error
        if error is None:
            return False
        if (error.detail or {}).get("reason") != "damaged":
            raise Wrong(f"{topic}: {error.code}: {error}")
        if topic and topic not in may:
            raise Wrong(f"{topic} is refused, and damaged is {may or 'no topic'}")
        if topic:
            self.refused.add(topic)
        return True

    def _look(self, client: Inside, may: set[str]) -> None:
        """Read every topic from its first record to its last."""
        found = set(client.shard.shard.directory.visible)
        if found != CONFIGS.keys():
            raise Wrong(f"the topics are {sorted(found)}")
        for name in CONFIGS:
            epoch = client.shard.call("state", name)["epoch"]
            if epoch != self.world.epochs[name]:
                raise Wrong(f"{name} was created again")
            position, ended = 0, False
            while not ended:
                queue = name == QUEUE
                read = client.peek(name, position + 1) if queue else client.read(name, position, limit=1000)
                if self._take_refusal(client, may, name):
                    break
                position, ended = read.next_from_seq, read.caught_up

    def _judge(self) -> None:
        report = check_reader(f.Reader(io.BytesIO(written(topics(self.salvaged), [], self.notes.lines))))
        if report.counts or report.unread:
            texts = "; ".join(str(each) for each in report.violations[:3])
            raise Wrong(f"the history is wrong: {report.counts}, not read: {report.unread}. {texts}")


def run(draws: int, seed: int, only: int | None = None) -> Figures:
    """Run draws 0 to `draws`, or only one of them."""
    figures = Figures()
    world, of = None, -1
    for number in range(draws) if only is None else (only,):
        if world is None or of != number // DRAWS_OF_A_WORLD:
            of = number // DRAWS_OF_A_WORLD
            world = World(seed + of)
        trial = Trial(world, seed, number)
        try:
            trial.run()
        except Wrong as error:
            figures.failures.append(f"draw {number}, {'live, ' * trial.live}{trial.damage}: {error}")
        except Exception:  # the product must not raise it
            text = traceback.format_exc(limit=-14)
            figures.failures.append(f"draw {number}, {'live, ' * trial.live}{trial.damage}: {text}")
        figures.draws += 1
        figures.live += trial.live
        figures.ends[trial.end] += 1
        figures.kinds[f"{trial.damage.kind}, {trial.damage.how}"] += 1
        figures.lost_frames = max(figures.lost_frames, trial.lost_frames)
    return figures
