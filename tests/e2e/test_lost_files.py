"""Claims about lost, cut or damaged files of one topic: all other topics go on, also after a restart."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.service import Service, until

SMALL = {
    "TOPICS_CACHE_BYTES": "0",
    "TOPICS_CHECKPOINT_BYTES": "4096",
    "TOPICS_SEGMENT_MAX_EVENTS": "20",
    "TOPICS_HOT_RETAIN_SEGMENTS": "0",
    "TOPICS_HOT_RETAIN_BYTES": "0",
}


def _write(service: Service, topic: str, count: int) -> None:
    for _ in range(count):
        records = [{"data": "x" * 200}] * 10
        assert service.request("POST", f"/v0/topics/{topic}", {"records": records})[0] in (200, 201)


def _diff(service: Service, topic: str, from_seq: int = 0) -> tuple[int, Any]:
    return service.request("POST", f"/v0/topics/{topic}/diff", {"from_seq": from_seq, "limit": 1000})


def _ready(service: Service) -> tuple[int, int]:
    """The status, and how many topics are set apart. What a gateway says of a shard is as old as the last packet from
    it, and that of another gateway's request does not reach it."""
    status, ready = service.request("GET", "/v0/ready")
    return status, ready.get("topics_quarantined", 0)


def _apart(service: Service) -> None:
    status, body = _diff(service, "bad")
    assert (status, body["error"]["code"]) == (503, "not_ready")
    assert body["error"]["detail"]["reason"] == "damaged"
    assert "/" not in str(body).replace("not_ready", "")
    assert _diff(service, "good")[0] == 200
    until(lambda: _ready(service) == (200, 1), "the gateway to have heard of it")
    assert service.request("GET", "/v0/topics/bad")[1]["quarantined"]["reason"] == "damaged"
    listed = service.request("GET", "/v0/topics")[1]["topics"]
    assert [each["topic"] for each in listed if each.get("quarantined")] == ["bad"]


@pytest.mark.parametrize("what", ["cold folder moved away", "segment truncated", "segment flipped"])
def test_the_trouble_of_a_topic_stays_with_it(tmp_path: Path, what: str) -> None:
    cold = tmp_path / "cold"
    cold.mkdir()
    environment = {**SMALL, "TOPICS_COLD_DIR": str(cold)} if "cold" in what else SMALL
    with Service(tmp_path, shards=1, **environment) as service:
        _write(service, "bad", 30)
        _write(service, "good", 1)

        folder = cold if "cold" in what else tmp_path
        files = until(lambda: sorted(_bad(folder)), "segments of the topic")
        if "cold" in what:
            data = tmp_path / "data"  # the shard has taken a cold segment into use when it removes the one it copied
            number = itertools.count()

            def moved() -> bool:
                # A checkpoint moves what earlier ones sealed, and needs writes. A topic of one write has none to move.
                _write(service, f"small-{next(number)}", 1)
                return len(_bad(cold)) > len(_bad(data))

            until(moved, "segments read from the cold folder")
            shutil.move(cold, tmp_path / "elsewhere")
        elif "truncated" in what:
            os.truncate(files[0], 10)
        else:
            with open(files[0], "r+b") as file:
                file.seek(100)
                file.write(b"\xff" * 8)
        until(lambda: _diff(service, "bad")[0] == 503, "the damage to be met", 30)
        _apart(service)
        with contextlib.closing(service.connect()) as connection:
            connection.request("GET", "/metrics")
            assert b"\ntopics_quarantined 1.0\n" in connection.getresponse().read()
        pids = service.pids()
        _write(service, "good", 10)
        assert service.pids() == pids
        service.restart()
        until(lambda: _diff(service, "bad")[0] == 503, "the damage to be met", 30)
        _apart(service)
        _write(service, "good", 10)
        if "cold" in what:
            shutil.copytree(tmp_path / "elsewhere", cold, dirs_exist_ok=True)  # a file being moved may have created it
            service.restart()
            status, body = _diff(service, "bad")
            assert (status, len(body["records"])) == (200, 300)
        assert service.request("DELETE", "/v0/topics/bad")[1]["deleted"]
        until(lambda: _ready(service) == (200, 0), "the gateway to have heard of it")


def _bad(folder: Path) -> list[Path]:
    return [path for path in folder.glob("**/*.data") if path.parent.name.endswith("1")]
