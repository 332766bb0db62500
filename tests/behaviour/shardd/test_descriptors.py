"""Claims about descriptors: the number of topics that a shard reads does not depend on how many files it may open."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from shardd.storage.disk import RealDisk
from tests.support.fault_disk import FaultDisk
from tests.support.harness import Harness

ROOT = Path(__file__).parents[3]
TOPICS = 60


def maps() -> int:
    return Path("/proc/self/maps").read_text().count("/seg-")


def test_more_topics_than_descriptors_are_read_and_recovered(tmp_path: Path) -> None:
    """In a process of its own: in that of the tests, threads that other tests have left may open files meanwhile."""
    command = [sys.executable, "-m", __name__, tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def read_and_recover(path: Path) -> None:
    """With room for 20 more descriptors than this process has."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, most))
    shard = Harness(RealDisk(), path=path / "shard-00", cache_bytes=0)
    for number in range(TOPICS):
        shard.append(f"t{number}", number)
    shard.shard.commits.sync_now()
    shard.shard.checkpoint_now()
    for _ in range(2):
        for number in range(TOPICS):
            assert [r["data"] for r in shard.everything(f"t{number}")] == [number]
        assert maps() == 0
        shard = shard.restarted()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_read_that_meets_the_limit_is_refused_and_the_next_one_is_not(number: int) -> None:
    disk = FaultDisk()
    shard = Harness(disk, cache_bytes=0)
    shard.append("a", 1)
    shard.append("b", 2)
    shard.shard.commits.sync_now()
    shard.shard.checkpoint_now()
    disk.unreadable = {path: OSError(number, os.strerror(number)) for path in disk.names if path.suffix == ".data"}
    reply = shard.reply("diff", "a", {})
    assert reply.error is not None
    assert (reply.error.code, reply.error.detail) == ("not_ready", {"reason": "exhausted"})
    assert "seg-" not in reply.error.message
    disk.unreadable.clear()
    assert [r["data"] for r in shard.everything("a")] == [1]
    assert [r["data"] for r in shard.everything("b")] == [2]


if __name__ == "__main__":
    read_and_recover(Path(sys.argv[1]))
