"""What each disk does: the real one, the fault disk of the tests, and the real one behind the dials of a service.

What survives a crash of the machine is not asked: of the real disk no test can know it. `tests/crash` tests the product
against the fault disk, which takes away all that `shardd.storage.disk` does not promise.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from shardd.storage.disk import IOV_MAX, Disk, File, RealDisk
from tests.support.dials import Dials
from tests.support.fault_disk import FaultDisk

ROOT = Path(__file__).parents[2]


@dataclass
class Scene:
    disk: Disk
    path: Path
    """A directory that is there and empty."""

    def file(self, name: str, content: bytes = b"") -> File:
        file = self.disk.create(self.path / name)
        assert file.write([content]) == len(content)
        return file

    def content(self, name: str) -> bytes:
        return bytes(self.disk.read(self.path / name))


@pytest.fixture(params=["real", "fault"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    disk: Disk = RealDisk() if request.param == "real" else FaultDisk()
    path = tmp_path / "shard-00"
    disk.make_dir(path)
    return Scene(disk, path)


def refused(number: int, call: Callable[[], object]) -> None:
    with pytest.raises(OSError, match=rf"\[Errno {number}\]"):
        call()


# Files


def test_what_is_written_is_read_back_in_order(scene: Scene) -> None:
    file = scene.file("log")
    assert file.write([]) == 0
    assert file.write([b"one", memoryview(b"two"), bytearray(b"three")]) == 11
    assert file.write([b""]) == 0
    file.sync()
    assert file.write([b"four"]) == 4
    assert scene.content("log") == b"onetwothreefour"
    assert scene.disk.size(scene.path / "log") == 15
    file.close()


def test_more_buffers_than_one_call_of_the_system_takes_are_written(scene: Scene) -> None:
    file = scene.file("log")
    assert file.write([b"%d." % (n % 10) for n in range(2 * IOV_MAX + 1)]) == 2 * (2 * IOV_MAX + 1)
    assert scene.content("log") == b"".join(b"%d." % (n % 10) for n in range(2 * IOV_MAX + 1))
    file.close()


def test_a_file_that_is_opened_is_appended_to(scene: Scene) -> None:
    scene.file("log", b"abc").close()
    file = scene.disk.open(scene.path / "log")
    file.write([b"def"])
    file.close()
    assert scene.content("log") == b"abcdef"


def test_a_file_that_is_created_again_is_empty(scene: Scene) -> None:
    scene.file("log", b"abc").close()
    file = scene.disk.create(scene.path / "log")
    assert scene.content("log") == b""
    file.write([b"x"])
    file.close()
    assert scene.content("log") == b"x"


def test_bytes_are_overwritten_in_place_and_the_end_stays_the_end(scene: Scene) -> None:
    file = scene.file("log", b"abcdef")
    file.write_at(2, b"XY")
    file.write([b"gh"])
    file.close()
    assert scene.content("log") == b"abXYefgh"


@pytest.mark.parametrize("size", [0, 2, 6, 9])
def test_a_file_is_cut_or_lengthened_with_zeros_and_appended_to_there(scene: Scene, size: int) -> None:
    file = scene.file("log", b"abcdef")
    file.truncate(size)
    file.write([b"gh"])
    file.close()
    assert scene.content("log") == b"abcdef\0\0\0"[:size] + b"gh"


def test_a_closed_file_takes_nothing(scene: Scene) -> None:
    file = scene.file("log", b"abc")
    file.close()
    for call in (
        lambda: file.write([b"x"]),
        lambda: file.write_at(0, b"x"),
        file.sync,
        lambda: file.truncate(0),
        file.close,
    ):
        refused(errno.EBADF, call)
    assert scene.content("log") == b"abc"


def test_a_file_is_written_on_under_its_new_name_and_without_one(scene: Scene) -> None:
    file = scene.file("old", b"abc")
    scene.disk.replace(scene.path / "old", scene.path / "new")
    file.write([b"def"])
    assert scene.content("new") == b"abcdef"
    scene.disk.remove(scene.path / "new")
    file.write([b"ghi"])
    file.sync()
    file.close()
    assert scene.disk.list(scene.path) == []


# Reading


def test_a_view_is_read_only_and_outlives_the_file(scene: Scene) -> None:
    scene.file("log", b"abc").close()
    view = scene.disk.read(scene.path / "log")
    assert view.readonly
    scene.disk.remove(scene.path / "log")
    scene.file("log", b"other").close()
    assert bytes(view) == b"abc"


def test_a_view_has_the_bytes_that_were_there(scene: Scene) -> None:
    file = scene.file("log", b"abc")
    view = scene.disk.read(scene.path / "log")
    file.write([b"def"])
    file.close()
    assert bytes(view) == b"abc"


def test_a_view_outlives_a_cut(scene: Scene) -> None:
    """A map would end the process here, as it does where the device cannot read."""
    file = scene.file("log", b"abc")
    view = scene.disk.read(scene.path / "log")
    file.truncate(0)
    file.close()
    assert bytes(view) == b"abc"


def test_an_empty_file_is_read(scene: Scene) -> None:
    scene.file("log").close()
    assert scene.content("log") == b""
    assert scene.disk.read_part(scene.path / "log", 0, 10) == b""


@pytest.mark.parametrize(
    ("offset", "size", "found"), [(0, 3, b"abc"), (2, 2, b"cd"), (4, 100, b"ef"), (6, 1, b""), (1 << 40, 5, b"")]
)
def test_a_part_ends_with_the_file(scene: Scene, offset: int, size: int, found: bytes) -> None:
    scene.file("log", b"abcdef").close()
    assert scene.disk.read_part(scene.path / "log", offset, size) == found


def test_what_is_not_there_is_an_error(scene: Scene) -> None:
    disk, path = scene.disk, scene.path / "none"
    for call in (
        lambda: disk.open(path),
        lambda: disk.read(path),
        lambda: disk.read_part(path, 0, 1),
        lambda: disk.size(path),
        lambda: disk.remove(path),
        lambda: disk.replace(path, scene.path / "other"),
        lambda: disk.allotted(path),
        lambda: disk.vacate(path),
        lambda: disk.sync_dir(path),
        lambda: disk.create(path / "file"),
    ):
        refused(errno.ENOENT, call)
    assert disk.list(path) == []
    assert disk.list(scene.path) == []


# Names


def test_names_are_listed_in_order_with_directories_that_are_empty(scene: Scene) -> None:
    for name in ("b", "a", "C", "10", "9"):
        scene.file(name).close()
    scene.disk.make_dir(scene.path / "topics" / "1")
    assert scene.disk.list(scene.path) == ["10", "9", "C", "a", "b", "topics"]
    assert scene.disk.list(scene.path / "topics") == ["1"]
    assert scene.disk.list(scene.path / "topics" / "1") == []


def test_a_directory_that_is_there_is_made_again_without_harm(scene: Scene) -> None:
    scene.file("log", b"abc").close()
    scene.disk.make_dir(scene.path)
    assert scene.content("log") == b"abc"


def test_a_file_is_no_directory(scene: Scene) -> None:
    scene.file("log").close()
    refused(errno.EEXIST, lambda: scene.disk.make_dir(scene.path / "log"))
    refused(errno.ENOTDIR, lambda: scene.disk.list(scene.path / "log"))


def test_a_rename_replaces_a_file(scene: Scene) -> None:
    scene.file("new", b"new").close()
    scene.file("old", b"old").close()
    scene.disk.replace(scene.path / "new", scene.path / "old")
    assert scene.disk.list(scene.path) == ["old"]
    assert scene.content("old") == b"new"


@pytest.mark.parametrize("empty", [True, False])
def test_a_directory_is_renamed_with_what_is_in_it(scene: Scene, empty: bool) -> None:
    disk, path = scene.disk, scene.path
    disk.make_dir(path / "a" / "deep")
    if not empty:
        scene.file("a/deep/log", b"abc").close()
    disk.replace(path / "a", path / "b")
    assert disk.list(path) == ["b"]
    assert disk.list(path / "b" / "deep") == ([] if empty else ["log"])
    assert disk.list(path / "a") == []


def test_a_directory_is_not_renamed_to_a_name_that_has_something(scene: Scene) -> None:
    for name in ("a", "b"):
        scene.disk.make_dir(scene.path / name)
        scene.file(f"{name}/log", name.encode()).close()
    refused(errno.ENOTEMPTY, lambda: scene.disk.replace(scene.path / "a", scene.path / "b"))
    assert (scene.content("a/log"), scene.content("b/log")) == (b"a", b"b")


def test_a_tree_is_removed_with_what_is_in_it_and_nothing_beside_it(scene: Scene) -> None:
    scene.disk.make_dir(scene.path / "a" / "deep")
    scene.file("a/deep/log").close()
    scene.file("ab", b"stays").close()
    scene.disk.remove_tree(scene.path / "a")
    scene.disk.remove_tree(scene.path / "a")
    assert scene.disk.list(scene.path) == ["ab"]
    assert scene.content("ab") == b"stays"
    scene.disk.sync_dir(scene.path)


# Space


def test_allotted_blocks_are_given_up_and_allotted_again(scene: Scene) -> None:
    disk, path = scene.disk, scene.path / "ballast-1"
    disk.allot(path, 1 << 16)
    assert disk.allotted(path) == (1 << 16, 1 << 16)
    disk.allot(path, 1 << 17)
    assert disk.allotted(path) == (1 << 17, 1 << 17)
    disk.vacate(path)
    assert disk.allotted(path) == (1 << 17, 0)
    disk.allot(path, 1 << 17)
    assert disk.allotted(path) == (1 << 17, 1 << 17)
    assert disk.size(path) == 1 << 17
    assert disk.list(scene.path) == ["ballast-1"]
    disk.remove(path)
    assert disk.list(scene.path) == []


@pytest.mark.parametrize("before", [0, 1 << 16])
def test_blocks_that_there_is_no_room_for_change_no_size(scene: Scene, before: int) -> None:
    disk, path = scene.disk, scene.path / "ballast-1"
    if isinstance(disk, FaultDisk):
        disk.capacity = 1 << 20
    if before:
        disk.allot(path, before)
    for size in (1 << 62, 0):
        with pytest.raises(OSError, match="Errno"):
            disk.allot(path, size)
        assert disk.allotted(path) == (before, before)
    assert disk.list(scene.path) == ["ballast-1"]


def test_free_space_is_told_in_bytes(scene: Scene) -> None:
    assert scene.disk.free(scene.path) > 1 << 20


def test_a_boot_has_one_id(scene: Scene) -> None:
    assert scene.disk.boot_id() == type(scene.disk)().boot_id() != ""


# The dials


@pytest.mark.slow
def test_the_real_disk_behind_dials_that_are_not_turned_is_the_real_disk(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-k", "real and not dials", str(Path(__file__))]
    environment = os.environ | Dials(tmp_path / "dials").environment
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_dials_that_are_turned_fail_each_sync_and_no_write(tmp_path: Path) -> None:
    dials = Dials(tmp_path / "dials")
    dials.turn(sync_fails=True)
    script = (
        "import errno, sys\n"
        "from pathlib import Path\n"
        "from shardd.storage.disk import RealDisk\n"
        "path = Path(sys.argv[1])\n"
        "file = RealDisk().create(path / 'log')\n"
        "assert file.write([b'abc']) == 3\n"
        "for call in (file.sync, lambda: RealDisk().sync_dir(path)):\n"
        "    try:\n"
        "        call()\n"
        "    except OSError as error:\n"
        "        assert error.errno == errno.EIO\n"
        "    else:\n"
        "        sys.exit('a sync succeeded')\n"
        "assert bytes(RealDisk().read(path / 'log')) == b'abc'\n"
    )
    environment = os.environ | dials.environment
    environment["PYTHONPATH"] = os.pathsep.join([environment["PYTHONPATH"], str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
