"""Offline commands: which directories they work on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proto.model.limits import Limits
from supervisor.backup import offline
from supervisor.process.datadir import DataDir, DataDirError


@pytest.fixture
def exchanging(tmp_path: Path) -> Path:
    """A data directory in which `topics reshard` died: the manifest is still that of before."""
    DataDir.open(tmp_path, 1, 1234, takeover_s=0).close()
    (tmp_path / "shard-01" / "wal").mkdir(parents=True)
    (tmp_path / "reshard.json").write_text('{"shards": 2}')
    return tmp_path


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that processes would have been started for."""
    found: list[str] = []

    def run(command: str, *_: object) -> Iterator[dict[str, Any]]:
        found.append(command)
        yield {"kind": "exit", "status": 0}

    monkeypatch.setattr(offline, "_run", run)
    return found


@pytest.mark.parametrize("command", ["verify", "salvage", "cut"])
def test_shards_that_are_half_exchanged_are_for_reshard_alone(exchanging: Path, run: list[str], command: str) -> None:
    for _ in range(2):  # the lock is not kept
        with pytest.raises(DataDirError, match="run `topics reshard` again to finish it"):
            list(offline.results(command, exchanging, Limits()))
    assert list(offline.results("reshard", exchanging, Limits(), shards=2)) == [{"kind": "exit", "status": 0}]
    (exchanging / "reshard.json").unlink()
    (exchanging / "manifest.json").write_text('{"format": 1, "shards": 2, "created_ms": 1234}')
    list(offline.results(command, exchanging, Limits()))
    assert run == ["reshard", command]


@pytest.mark.parametrize("command", ["verify", "salvage", "cut", "reshard"])
@pytest.mark.parametrize(
    ("there", "said"),
    [
        ("shard-02/wal", "shard-02 holds data, but the manifest says 2 shards"),
        ("shard-00.bak/wal", r"shard-00\.bak holds data, but the manifest says 2 shards"),
        ("", "shard-01 is missing: the manifest says 2 shards"),
    ],
)
def test_shards_that_the_manifest_does_not_name_or_that_are_missing_stop_each_command(
    tmp_path: Path, run: list[str], there: str, said: str, command: str
) -> None:
    DataDir.open(tmp_path, 2, 1234, takeover_s=0).close()
    if there:
        (tmp_path / there).mkdir(parents=True)
    else:
        (tmp_path / "shard-01").rmdir()
    before = sorted(tmp_path.rglob("*"))
    for _ in range(2):  # the lock is not kept
        with pytest.raises(DataDirError, match=said):
            list(offline.results(command, tmp_path, Limits(), shards=1))
    assert (run, sorted(tmp_path.rglob("*"))) == ([], before)
