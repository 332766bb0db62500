"""What `topics verify` and `topics reshard` say of a directory that they do not work on."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from supervisor.cli.main import app
from supervisor.process.datadir import DataDir


@pytest.mark.parametrize("command", [["verify"], ["reshard", "--shards", "1"], ["salvage", "orders"]])
def test_a_directory_whose_shards_are_not_those_of_its_manifest_is_refused(command: list[str], tmp_path: Path) -> None:
    DataDir.open(tmp_path, 2, 1234, takeover_s=0).close()
    (tmp_path / "shard-02" / "wal").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    done = CliRunner().invoke(app, [*command, "--data-dir", str(tmp_path)])
    assert (done.exit_code, "shard-02 holds data, but the manifest says 2 shards" in done.output) == (1, True)
    assert sorted(tmp_path.rglob("*")) == before
