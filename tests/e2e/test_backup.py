"""Claims about backups of a service under full load, and about restoring them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import cbor2

from proto.model.names import shard_of
from shardd.offline.reshard import shard_name
from shardd.storage import catalog
from shardd.storage.disk import RealDisk
from tests.support.service import Service, until

SMALL = {
    "TOPICS_CHECKPOINT_BYTES": "1000000",
    "TOPICS_CHECKPOINT_INTERVAL_MS": "1000",
    "TOPICS_SEGMENT_MAX_EVENTS": "200",
}
TOPICS = ("a", "b", "c")


def topics(*arguments: str, status: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {n: v for n, v in os.environ.items() if not n.startswith("TOPICS_")}
    command = [sys.executable, "-P", "-m", "supervisor.cli", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=180, check=False, env={**kept, **environment}
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


def made(directory: Path, data: Path) -> dict[str, Any]:
    lines = topics("backup", str(directory), "--data-dir", str(data), "--json").stdout.splitlines()
    found: dict[str, Any] = json.loads(lines[-1])
    assert found["kind"] == "done"
    return found


class Writer(threading.Thread):
    """Writes numbers to a topic, as fast as it can; `acked` is the last acknowledged one."""

    def __init__(self, service: Service, topic: str) -> None:
        super().__init__()
        self._service = service
        self._topic = topic
        self.acked = 0
        self.enough = threading.Event()

    def run(self) -> None:
        while not self.enough.is_set():
            records = [{"data": {"n": self.acked + 1 + i, "pad": "x" * 50}} for i in range(20)]
            status, _ = self._service.request("POST", f"/v0/topics/{self._topic}", {"records": records})
            assert status in (200, 201), status
            self.acked += 20


def numbers(service: Service, topic: str) -> list[int]:
    found: list[int] = []
    cursor = 0
    while True:
        _, answer = service.request("POST", f"/v0/topics/{topic}/diff", {"from_seq": cursor, "limit": 1000})
        found += [record["data"]["n"] for record in answer["records"]]
        cursor = answer["next_from_seq"]
        if answer["caught_up"]:
            return found


def test_a_backup_under_load_has_all_that_was_acked_before_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    with Service(tmp_path / "live", **SMALL) as service:
        writers = [Writer(service, topic) for topic in TOPICS]
        for writer in writers:
            writer.start()
        backups: list[tuple[dict[str, Any], dict[str, int]]] = []
        for _ in range(2):
            acked = {writer._topic: writer.acked for writer in writers}
            backups.append((made(tmp_path / "backups", service.data_dir), acked))
        for writer in writers:
            writer.enough.set()
        for writer in writers:
            writer.join(20)
        # Deletions after the cut reach the service's segments in place, and must not reach the backup.
        for writer in writers:
            status, _ = service.request("POST", f"/v0/topics/{writer._topic}/delete", {"before_seq": writer.acked})
            assert status == 200
        service.restart()
        service.stop()
        for number, (found, acked) in enumerate(backups):
            data = tmp_path / f"restored-{number}" / "data"
            data.parent.mkdir()
            topics("restore", found["path"], "--data-dir", str(data))
            topics("verify", "--data-dir", str(data))
            with Service(data.parent, **SMALL) as again:
                for topic in TOPICS:
                    there = numbers(again, topic)
                    assert there == list(range(1, len(there) + 1))
                    assert len(there) >= acked[topic], f"{topic} of backup {number}"


def everything(service: Service, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor = 0
    while True:
        _, answer = service.request("POST", f"/v0/topics/{topic}/diff", {"from_seq": cursor, "limit": 1000})
        found += answer["records"]
        cursor = answer["next_from_seq"]
        if answer["caught_up"]:
            return found


def test_a_restore_to_a_time_or_a_seq_gives_exactly_the_records_up_to_it(tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    with Service(tmp_path / "live", **SMALL) as service:
        writers = [Writer(service, topic) for topic in TOPICS]
        for writer in writers:
            writer.start()
        until(lambda: all(writer.acked > 2000 for writer in writers), "some records")
        asked = {"from_seq": 1500, "limit": 1}
        answers = [service.request("POST", f"/v0/topics/{topic}/diff", asked)[1] for topic in TOPICS]
        moment = max(answer["records"][0]["$ts"] for answer in answers)  # one shard may be far ahead of the other
        until(lambda: all(writer.acked > 4000 for writer in writers), "more records")
        made(tmp_path / "backups", service.data_dir)
        for writer in writers:
            writer.enough.set()
        for writer in writers:
            writer.join(20)
        there = {topic: everything(service, topic) for topic in TOPICS}
        service.stop()
    made(tmp_path / "backups", tmp_path / "live" / "data")  # a later backup, which must not be used
    data = tmp_path / "again" / "data"
    backups = str(tmp_path / "backups")
    lines = topics("restore", backups, str(data), "--until", str(moment), "--until-seq", "b=777", "--json").stdout
    found = [json.loads(line) for line in lines.splitlines()]
    assert {each["topic"] for each in found if each["kind"] == "cut"} == set(TOPICS)
    assert found[-1]["backup"] == str(min((tmp_path / "backups").iterdir()))
    topics("verify", "--data-dir", str(data))
    wanted = {topic: [r for r in there[topic] if r["$ts"] <= moment] for topic in TOPICS} | {"b": there["b"][:777]}
    assert all(len(records) > 100 for records in wanted.values())
    with Service(data.parent, **SMALL) as again:
        for topic in TOPICS:
            assert everything(again, topic) == wanted[topic], topic
            status, answer = again.request("POST", f"/v0/topics/{topic}", {"records": [{"data": "new"}]})
            assert status in (200, 201)
            assert answer["first_seq"] > there[topic][-1]["$seq"]
    # A cold folder that the backup does not name may belong to a service.
    foreign = tmp_path / "cold" / "shard-00" / "topics" / "0000000000000001" / "seg-00000000000000000001.data"
    foreign.parent.mkdir(parents=True)
    foreign.write_bytes(b"of another service")
    used = {"TOPICS_COLD_DIR": str(tmp_path / "cold"), "TOPICS_HOT_RETAIN_SEGMENTS": "0"}
    topics("restore", backups, str(tmp_path / "hot"), "--until", str(moment), **used)
    assert [path for path in (tmp_path / "cold").rglob("*") if path.is_file()] == [foreign]
    assert foreign.read_bytes() == b"of another service"
    refused = topics("restore", backups, "--data-dir", str(tmp_path / "b"), "--until", "2999-01-01T00:00:00Z", status=1)
    assert "later backup" in refused.stderr
    assert "no topic" in topics("restore", backups, str(tmp_path / "c"), "--until-seq", "zzz=1", status=1).stderr
    assert not (tmp_path / "c").exists()
    assert "time zone" in topics("restore", backups, str(tmp_path / "c"), "--until", "2026-01-01", status=2).stderr


def test_a_cut_reaches_the_cold_folder_and_leaves_the_backup_alone(tmp_path: Path) -> None:
    cold = {"TOPICS_COLD_DIR": str(tmp_path / "cold"), "TOPICS_HOT_RETAIN_SEGMENTS": "0"}
    small = {**SMALL, "TOPICS_SEGMENT_MAX_EVENTS": "50"}
    with Service(tmp_path, shards=1, **small, **cold) as service:
        for n in range(40):
            service.request("POST", "/v0/topics/a", {"records": [{"data": n * 10 + i} for i in range(10)]})
            if n == 30:
                service.restart()  # which makes a checkpoint
        there = everything(service, "a")
        service.stop()
    topics("backup", str(tmp_path / "backups"), "--data-dir", str(tmp_path / "data"), **cold)
    (backup,) = (tmp_path / "backups").iterdir()
    assert list(backup.glob("cold/**/*.data"))
    new = {**small, **cold, "TOPICS_COLD_DIR": str(tmp_path / "cold-again")}
    data = tmp_path / "again" / "data"
    topics("restore", str(backup), str(data), "--until-seq", "a=37", **new)
    topics("verify", "--data-dir", str(data), **new)
    with Service(data.parent, shards=1, **new) as again:
        assert everything(again, "a") == there[:37]
    kept = {**small, **cold, "TOPICS_COLD_DIR": str(tmp_path / "cold-kept")}
    topics("restore", str(backup), str(tmp_path / "kept" / "data"), "--reserve", "1000", **kept)
    with Service(tmp_path / "kept", shards=1, **kept) as again:
        assert everything(again, "a") == there
        assert again.request("POST", "/v0/topics/a", {"records": [{"data": 1}]})[1]["first_seq"] == 1401
    refused = topics("restore", str(backup), str(tmp_path / "x"), status=1)
    assert "TOPICS_COLD_DIR" in refused.stderr


def test_a_second_backup_takes_only_what_has_changed_and_a_used_directory_is_left_alone(tmp_path: Path) -> None:
    with Service(tmp_path) as service:
        service.request("POST", "/v0/topics/a", {"records": [{"data": "x" * 1000}] * 600})
        service.restart()
        service.stop()
    for path in (tmp_path / "data").rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    first = made(tmp_path / "backups", tmp_path / "data")
    second = made(tmp_path / "backups", tmp_path / "data")
    assert first["copied_bytes"] > 500_000
    assert (second["copied_bytes"], second["linked_bytes"]) == (0, first["copied_bytes"])
    refused = topics("restore", str(tmp_path / "backups"), "--data-dir", str(tmp_path / "data"), status=1)
    assert "is not empty" in refused.stderr
    topics("restore", str(tmp_path / "backups"), "--data-dir", str(tmp_path / "other"))
    topics("verify", "--data-dir", str(tmp_path / "other"))


def test_what_is_no_data_directory_and_what_is_no_backup_is_refused(tmp_path: Path) -> None:
    assert "manifest.json" in topics("backup", str(tmp_path / "b"), "--data-dir", str(tmp_path), status=1).stderr
    (tmp_path / "b" / "20260101T000000.000Z.tmp").mkdir(parents=True)
    (tmp_path / "b" / "20260101T000000.000Z.tmp" / "backup.json").write_text("{}")
    assert (
        "no whole backup" in topics("restore", str(tmp_path / "b"), "--data-dir", str(tmp_path / "d"), status=1).stderr
    )


def test_what_a_shard_lacks_is_told_by_verify_and_by_a_restore_that_cuts(tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    with Service(tmp_path / "live") as service:
        service.request("POST", "/v0/topics/a", {"records": [{"data": n} for n in range(5)]})
        service.restart()
        found = made(tmp_path / "backups", service.data_dir)
    shard = Path(found["path"]) / shard_name(shard_of("a", 2))
    number, contents = catalog.load(RealDisk(), shard) or (0, {})
    contents["topics"][0]["sum"] ^= 1
    contents["id_sum"] += 7
    catalog.write(RealDisk(), shard, number, {name: [cbor2.dumps(value)] for name, value in contents.items()})
    data = tmp_path / "restored" / "data"
    data.parent.mkdir()
    told = topics("restore", found["path"], "--data-dir", str(data), "--until-seq", "a=3").stderr
    assert 'topic "a": its segments do not add up' in told
    assert "the ids of its topics do not add up" in told
    told = topics("verify", "--data-dir", str(data), status=1).stderr
    assert 'topic "a": its segments do not add up' in told
    assert "the ids of its topics do not add up" in told
    with Service(data.parent) as again:
        assert [record["data"] for record in everything(again, "a")] == [0, 1, 2]
        with contextlib.closing(again.connect()) as connection:
            connection.request("GET", "/v0/metrics")
            assert b"\ntopics_records_missing 2.0\n" in connection.getresponse().read()
