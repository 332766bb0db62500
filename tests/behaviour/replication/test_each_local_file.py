"""Each kind of file of a machine with a bucket in turn, missing or changed: what is served is right, or it is refused
with the path, when the machine starts again and when it takes over from another one; the bucket loses nothing.

An empty machine and `restore` have no files of their own: `test_each_object` has them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from proto.model.errors import TopicsError
from shardd.recovery.wal_scan import RecoveryError
from shardd.replication.attach import Mismatch
from shardd.storage.catalog import CatalogError
from tests.behaviour.replication.test_each_object import Scene
from tests.support.fault_disk import FaultDisk
from tests.support.harness import Harness
from tests.support.shipped import Shipped

KINDS = {
    "oldest catalog": ("catalog-*", 0),
    "newest catalog": ("catalog-*", -1),
    "oldest log": ("wal/*", 0),
    "newest log": ("wal/*", -1),
    "segment": ("topics/*/*.data", 0),
    "newest segment": ("topics/*/*.data", -1),
    "index": ("topics/*/*.idx", 0),
    "bucket.json": ("bucket.json", 0),
}
DAMAGES = ("missing", "empty", "cut", "one bit", "an older one's")
ACTORS = ("starts again", "takes over")


def damaged(disk: FaultDisk, kind: str, how: str) -> Path:
    """Damage a file of a kind. Returns its path."""
    pattern, at = KINDS[kind]
    paths = sorted(path for path in disk.names if path.match(f"shard-00/{pattern}"))
    path = paths[at]
    node = disk.names[path]
    whole = bytes(node.data)
    middle = len(whole) // 2
    others = [each for each in paths if each != path]
    changed = {
        "empty": b"",
        "cut": whole[:middle],
        "one bit": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
        "an older one's": bytes(disk.names[others[0]].data) if others else b"{}",
    }
    if how == "missing":
        del disk.names[path]
        disk.durable.pop(path, None)
    else:
        node.data[:] = changed[how]
        node.synced = changed[how]
    return path


def served(shard: Harness) -> dict[str, object]:
    """The records of each topic; None for one that is refused because its files are damaged."""
    found: dict[str, object] = {}
    for name in sorted(shard.shard.directory.visible):
        try:
            found[name] = shard.everything(name)
        except TopicsError as error:
            if (error.detail or {}).get("reason") != "damaged":
                raise
            found[name] = None
    return found


def refused(machine: Shipped) -> str:
    """Why the machine does not get the shard."""
    try:
        machine.attach(by_hand=True)
    except (CatalogError, RecoveryError, Mismatch) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("actor", ACTORS)
def test_what_is_served_is_right_or_refused_with_its_path(actor: str, kind: str, how: str) -> None:
    scene = Scene(b"")
    assert isinstance(scene.holder.disk, FaultDisk)
    disk = scene.holder.disk.after_crash("process")
    expected = scene.expected
    if actor == "takes over":
        other = Shipped(scene.store(), FaultDisk(boot=9), clock=scene.holder.clock, wal_segment_bytes=4096)
        other.attach(by_hand=True)
        other.append("a", "of the other machine")
        other.append("b", 1)
        other.sync()
        other.ship()
        expected = served(other)
    before = dict(scene.below.objects)
    machine = scene.holder.again(disk.after_crash("process"))
    path = damaged(disk, kind, how)
    machine.disk = disk
    if refusal := refused(machine):
        assert path.name in refusal or str(path.parent) in refusal
    else:
        found = served(machine)
        assert found.keys() == expected.keys()
        assert all(found[name] in (None, expected[name]) for name in found)
    kept = {name: data for name, data in scene.below.objects.items() if name in before}
    assert {name: data for name, data in before.items() if "/alive/" not in name}.items() <= kept.items()
