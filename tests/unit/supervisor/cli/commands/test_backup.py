"""What `topics restore` makes of its options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from proto.model.limits import Limits
from shardd.offline import rewind
from shardd.offline.fetch import fetch
from supervisor.backup import restore as restores
from supervisor.cli.main import app
from tests.support.bucket import MemoryStore
from tests.support.fault_disk import FaultDisk
from tests.support.harness import SHARD, Harness
from tests.support.shipped import SMALL, Shipped


@pytest.mark.parametrize("cut", [["--until-seq", "a=5"], ["--until", "a=0"], []])
@pytest.mark.parametrize("reserve", [65_536, 1000])
def test_from_a_bucket_seqs_are_reserved_in_each_topic_whichever_are_cut(
    cut: list[str], reserve: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = Shipped(MemoryStore(), **SMALL).attach()
    for name in ("a", "b"):
        shard.append(name, *range(10), config={"durability": "fsync"})
    shard.sync()
    shard.ship()
    disk = FaultDisk(boot=7)

    def made(
        url: str, data_dir: Path, cold_dir: Path | None, cuts: restores.Cuts, limits: Limits
    ) -> Iterator[dict[str, Any]]:
        for _ in fetch(disk, shard.store, SHARD.parent, None, shard.limits, None):
            pass
        for found in rewind.cut(disk, [SHARD], shard.clock, shard.limits, rewind.Cuts(**asdict(cuts))):
            yield {"kind": "cut", **found}
        yield {"kind": "done", "backup": url, "data_dir": str(data_dir)}

    monkeypatch.setattr(restores, "restore_bucket", made)
    asked = [*cut, *([] if reserve == restores.RESERVE else ["--reserve", str(reserve)])]
    done = CliRunner().invoke(app, ["restore", "--from", "s3://b", str(tmp_path / "data"), *asked])
    assert done.exit_code == 0, done.output
    removed = {"--until-seq": 5, "--until": 10}[cut[0]] if cut else 0
    assert f"2 topics, {removed} records removed behind the cut, {reserve:,} seqs reserved in each" in done.output
    found = Harness(disk, shard.clock, **SMALL)
    assert len(found.everything("a")) == 10 - removed
    assert len(found.everything("b")) == 10
    assert [found.append(name, "new")["first_seq"] for name in ("a", "b")] == [10 + reserve + 1] * 2


def test_a_restore_that_names_what_its_source_may_lack_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [{"kind": "problem", "problem": "part 3 is missing"}, {"kind": "done", "backup": "b", "data_dir": "d"}]
    monkeypatch.setattr(restores, "restore_bucket", lambda *_: iter(found))
    done = CliRunner().invoke(app, ["restore", "--from", "s3://b", str(tmp_path / "data")])
    assert done.exit_code == 0, done.output
    assert "part 3 is missing" in done.stderr
    assert "b is restored to d" in done.stdout
