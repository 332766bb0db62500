"""Claims about power cuts of the tests: what a trace proves to be on the device, and nothing else, survives them."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.history.bars import run
from tests.support.power import Device, Power

STEPS = """
import os
from shardd.storage.disk import RealDisk

disk, root = RealDisk(), Path(sys.argv[1])
disk.make_dir(root / "kept")
disk.make_dir(root / "unnamed")
disk.sync_dir(root)
for name in ("kept/a", "kept/b", "kept/c"):
    disk.create(root / name).write([name.encode(), b" one"])
    disk.open(root / name).sync()
disk.sync_dir(root / "kept")
disk.open(root / "kept/a").write([b" two"])
disk.open(root / "kept/a").write_at(0, b"KEPT")
disk.open(root / "kept/b").truncate(3)
disk.create(root / "kept/d").write([b"d"])
disk.open(root / "kept/d").sync()
disk.replace(root / "kept/c", root / "kept/e")
disk.allot(root / "kept/f", 4096)
disk.remove(root / "kept/b")
disk.create(root / "unnamed/x").sync()
disk.make_dir(root / "later")
disk.remove_tree(root / "unnamed")
"""


FAILING = """
import errno
from shardd.storage.disk import RealDisk

disk, root = RealDisk(), Path(sys.argv[1])
file = disk.create(root / "a")
file.write([b"1" * 4096])
try:
    file.sync()
except OSError as error:
    assert error.errno == errno.EIO
else:
    raise AssertionError("the sync did not fail")
file.write([b"2" * 512])
file.sync()
disk.sync_dir(root)
assert (root / "a").read_bytes() == b"1" * 4096 + b"2" * 512
"""


def traced(power: Power, steps: str, data: Path) -> None:
    """Run the steps in a process that is traced."""
    program = f"import sys\nfrom pathlib import Path\n{steps}"
    command = [sys.executable, "-c", program, str(data)]
    subprocess.run(command, env={**os.environ, **power.environment}, check=True)


@pytest.fixture
def device(tmp_path: Path) -> Device:
    """After the steps."""
    power = Power(tmp_path, Random(0))
    (tmp_path / "data").mkdir()
    device = Device(tmp_path / "data")
    traced(power, STEPS, tmp_path / "data")
    device.play(tmp_path / "trace")
    return device


def tree(path: Path) -> dict[str, bytes | None]:
    return {str(each.relative_to(path)): None if each.is_dir() else each.read_bytes() for each in path.rglob("*")}


def after(device: Device, mode: str, target: Path, seed: int = 0) -> dict[str, bytes | None]:
    device.write(target, mode, Random(seed))
    return tree(target)


BEFORE = {"kept": None, "unnamed": None, "kept/a": b"kept/a one", "kept/b": b"kept/b one", "kept/c": b"kept/c one"}


def test_without_a_sync_a_cut_may_drop_everything(device: Device, tmp_path: Path) -> None:
    assert after(device, "drop", tmp_path / "found") == BEFORE


def test_a_cut_may_keep_everything(device: Device, tmp_path: Path) -> None:
    assert after(device, "keep", tmp_path / "found") == tree(tmp_path / "data")
    kept = {"kept/a": b"KEPT/a one two", "kept/d": b"d", "kept/e": b"kept/c one", "kept/f": bytes(4096)}
    assert tree(tmp_path / "data") == kept | {"kept": None, "later": None}


@pytest.mark.parametrize("mode", ["tear", "reorder"])
def test_what_was_synced_survives_every_cut(device: Device, tmp_path: Path, mode: str) -> None:
    seen = set()
    for seed in range(40):
        found = after(device, mode, tmp_path / f"found{seed}", seed)
        assert found.keys() >= {"kept"}
        assert (found.get("kept/a") or b"")[4:10] == BEFORE["kept/a"][4:]  # type: ignore[index]
        assert ("kept/c" in found) != ("kept/e" in found), "a rename happens as a whole, or not"
        assert found.get("kept/d", b"d") == b"d"
        assert found.get("kept/b", b"kept/b one") in (b"kept/b one", b"kep")
        seen.add(tuple(sorted(found.items(), key=str)))
    assert len(seen) > 10


def test_what_a_failed_sync_was_to_cover_is_on_the_device_in_part_and_no_later_sync_brings_it(tmp_path: Path) -> None:
    power = Power(tmp_path, Random(0))
    (tmp_path / "data").mkdir()
    devices = [Device(tmp_path / "data", rng=Random(seed)) for seed in range(20)]
    power.faults.set(syncs=1)
    traced(power, FAILING, tmp_path / "data")
    assert power.faults.failed == 1
    found = set()
    for number, device in enumerate(devices):
        device.play(tmp_path / "trace")
        content = after(device, "drop", tmp_path / f"found{number}")["a"]
        assert content is not None
        assert content[4096:] == b"2" * 512
        assert set(content[:4096]) <= set(b"1\0")
        found.add(content)
    assert len(found) > 10


def test_writes_fail_as_they_are_told(tmp_path: Path) -> None:
    power = Power(tmp_path, Random(0))
    (tmp_path / "data").mkdir()
    power.faults.set(write_errno=errno.ENOSPC)
    steps = """
from errno import ENOSPC
from shardd.storage.disk import RealDisk

for call in ("create", "make_dir"):
    try:
        getattr(RealDisk(), call)(Path(sys.argv[1]) / call)
    except OSError as error:
        assert error.errno == ENOSPC
    else:
        raise AssertionError(call)
"""
    traced(power, steps, tmp_path / "data")
    assert not list((tmp_path / "data").iterdir())


@pytest.mark.long
def test_a_service_that_never_syncs_is_found(tmp_path: Path) -> None:
    try:
        outcome = run(tmp_path, 3, 0, 1, faults=8, scale=0.5, PYTHONPOWER_NEVER_SYNC="1")
    except AssertionError:
        return
    assert outcome.report.counts
