"""What `topics status` adds to what the service says."""

from __future__ import annotations

from pathlib import Path

from supervisor.cli import status_view


def test_free_space_is_that_of_the_disk_where_no_shard_says_it(tmp_path: Path) -> None:
    known = status_view._usage(str(tmp_path), 5.0)
    found = status_view._usage(str(tmp_path), None)
    assert known["free_bytes"] == 5.0
    assert 0 < found["free_bytes"] <= found["total_bytes"] == known["total_bytes"]
    assert status_view._usage(str(tmp_path / "none"), None) == {}
