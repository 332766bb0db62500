"""Claims about `topics verify`, which names a damaged topic, and `topics salvage`, which restores it, with the records
of a backup if there is one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.service import Service, until

SMALL = {"TOPICS_CACHE_BYTES": "0", "TOPICS_CHECKPOINT_BYTES": "4096", "TOPICS_SEGMENT_MAX_EVENTS": "20"}


def topics(service: Service, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "supervisor.cli", *arguments, "--data-dir", str(service.data_dir)],
        env=service.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def _read(service: Service) -> tuple[list[int], list[str]]:
    data: list[int] = []
    gaps: list[str] = []
    cursor, caught_up = 0, False
    while not caught_up:
        status, answer = service.request("POST", "/v0/topics/bad/diff", {"from_seq": cursor, "limit": 1000})
        assert status == 200, answer
        data += [record["data"] for record in answer["records"]]
        gaps += [answer["tombstone"]["reason"]] if answer["tombstone"] else []
        cursor, caught_up = answer["next_from_seq"], answer["caught_up"]
    return data, gaps


@pytest.mark.parametrize("backed_up", [False, True])
def test_a_damaged_topic_is_named_and_brought_back(tmp_path: Path, backed_up: bool) -> None:
    with Service(tmp_path, shards=1, **SMALL) as service:
        for number in range(0, 200, 10):
            body: dict[str, Any] = {"records": [{"data": number + n, "meta": {"text": "x" * 100}} for n in range(10)]}
            assert service.request("POST", "/v0/topics/bad", body)[0] in (200, 201)
        service.request("POST", "/v0/topics/good", {"records": [{"data": 1}]})
        files = until(lambda: sorted(service.data_dir.glob("shard-00/topics/*1/*.data")), "a segment of the topic")
        assert service.stop() == 0
        assert topics(service, "backup", str(tmp_path / "backups"))[0] == 0
        status, said = topics(service, "salvage", "bad")
        assert (status, "sound" in said) == (0, True), said
        with open(files[0], "r+b") as file:
            file.seek(100)
            file.write(b"\xff" * 8)
        status, said = topics(service, "verify")
        assert (status, '"bad"' in said, '"good"' in said) == (1, True, False), said
        source = ["--from", str(tmp_path / "backups")] if backed_up else []
        status, said = topics(service, "salvage", "bad", *source)
        assert status == 0, said
        assert topics(service, "verify")[0] == 0
        service.start()
        data, gaps = _read(service)
        if backed_up:
            assert (data, gaps) == (list(range(200)), [])
        else:
            assert gaps == ["mixed"]
            assert data == list(range(200 - len(data), 200))
            assert 0 < len(data) < 200
        assert service.request("POST", "/v0/topics/bad", {"records": [{"data": 200}]})[1]["last_seq"] == 201
