"""Claims about `topics export` and `topics import` against a real service."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from supervisor.cli.main import app
from supervisor.client.transfer import Client
from tests.support.service import Service, until


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("transfer"), TOPICS_MAX_BATCH_RECORDS="300") as service:
        yield service


def topics(
    service: Service, *arguments: str, status: int = 0, given: bytes | None = None
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "supervisor.cli", *arguments, "--url", service.url]
    done = subprocess.run(command, capture_output=True, timeout=180, check=False, env=service.environment, input=given)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def write(service: Service, topic: str, *records: dict[str, Any]) -> None:
    status, answer = service.request("POST", f"/v0/topics/{topic}", {"records": list(records)})
    assert status in (200, 201), answer


def everything(service: Service, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor = 0
    while True:
        question = {"from_seq": cursor, "limit": 1000, "include_tags": True}
        status, answer = service.request("POST", f"/v0/topics/{topic}/diff", question)
        assert status == 200, answer
        found += answer["records"]
        cursor = answer["next_from_seq"]
        if answer["caught_up"]:
            return found


def content(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the part of the records that an import restores: without seqs and times."""
    return [{name: value for name, value in each.items() if name not in ("$seq", "$ts", "topic")} for each in records]


@pytest.mark.parametrize("name", ["all.jsonl", "all.jsonl.gz"])
def test_what_was_exported_is_imported_again_with_its_configuration(
    service: Service, tmp_path: Path, name: str
) -> None:
    stem = f"there-{name.count('.')}"
    status, _ = service.request("PUT", f"/v0/topics/{stem}:q", {"type": "queue", "durability": "fsync"})
    assert status in (200, 201)
    for at in range(5):
        write(service, f"{stem}:a", *({"data": [at, n, 1.5], "tag": f"t{n}", "meta": {"k": n}} for n in range(290)))
        write(service, f"{stem}:q", {"data": {"job": at}, "node": "me"})
    service.request("POST", f"/v0/topics/{stem}:a/delete", {"match": "t7"})
    file = tmp_path / name
    done = topics(service, "export", f"{stem}:*", "-o", str(file))
    assert b"1,450 records of 2 topics" in done.stdout
    raw = gzip.decompress(file.read_bytes()) if name.endswith("gz") else file.read_bytes()
    lines = [json.loads(line) for line in raw.splitlines()]
    wanted = {topic: everything(service, topic) for topic in (f"{stem}:a", f"{stem}:q")}
    for topic, records in wanted.items():
        assert [line for line in lines if line["topic"] == topic and "data" in line] == [
            {"topic": topic, **record} for record in records
        ]
        service.request("DELETE", f"/v0/topics/{topic}")
    assert b"1,450 records, 2 topics made" in topics(service, "import", str(file)).stdout
    for topic, records in wanted.items():
        assert content(everything(service, topic)) == content(records)
    _, state = service.request("GET", f"/v0/topics/{stem}:q")
    assert (state["type"], state["config"]["durability"]) == ("queue", "fsync")
    # Again: nothing twice.
    again = json.loads(topics(service, "import", str(file), "--json").stdout)
    assert (again["records"], again["deduped"], again["created"]) == (1450, 1450, 0)
    assert content(everything(service, f"{stem}:a")) == content(wanted[f"{stem}:a"])


def test_an_export_is_for_its_user_only(service: Service, tmp_path: Path) -> None:
    write(service, "private", {"data": 1})
    file, other = tmp_path / "out.jsonl", tmp_path / "other"
    for each in (file, other):
        each.touch(mode=0o666)
        each.chmod(0o666)
    (tmp_path / "out.jsonl.part").symlink_to(other)  # planted
    topics(service, "export", "private", "-o", str(file))
    assert file.stat().st_mode & 0o777 == 0o600
    assert not file.is_symlink()
    assert other.read_bytes() == b""


def test_pipes_take_what_they_are_given(service: Service) -> None:
    given = b"".join(b'{"n": %d}\n' % n for n in range(700)) + b"\n\n"
    topics(service, "import", "-", "--raw", "--topic", "piped", given=given)
    assert [record["data"] for record in everything(service, "piped")] == [{"n": n} for n in range(700)]
    out = topics(service, "export", "piped").stdout
    topics(service, "import", "-", "--topic", "piped:2", given=gzip.compress(out))
    assert content(everything(service, "piped:2")) == content(everything(service, "piped"))


def test_an_import_that_stops_says_how_to_go_on(service: Service, tmp_path: Path) -> None:
    lines = [b'{"topic":"stops","data":%d}\n' % n for n in range(1000)]
    lines[750] = b'{"topic":"stops"\n'
    file = tmp_path / "broken.jsonl"
    file.write_bytes(b"".join(lines))
    failed = topics(service, "import", str(file), status=1, given=b"")
    assert b"line 751" in failed.stderr
    lines[750] = b'{"topic":"stops","data":750}\n'
    lines[900:] = [b'{"topic":"?","data":1}\n']
    file.write_bytes(b"".join(lines))
    failed = topics(service, "import", str(file), "--batch-records", "200", status=1)
    assert b"lines 901 to 901" in failed.stderr
    assert b"--skip 900" in failed.stderr
    lines[900] = b'{"topic":"stops","data":900}\n'
    file.write_bytes(b"".join(lines))
    done = json.loads(topics(service, "import", str(file), "--skip", "900", "--json").stdout)
    assert (done["records"], done["lines"]) == (1, 901)
    assert [record["data"] for record in everything(service, "stops")] == list(range(901))


def test_gaps_are_told_and_are_in_the_file(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that loses its oldest records while it is exported."""
    service.request("PUT", "/v0/topics/gappy", {"cap_records": 2000})
    for _ in range(10):
        write(service, "gappy", *({"data": n} for n in range(200)))
    ask = Client.call
    asked: list[str] = []

    def first_one_then_eight_more_writes(client: Client, method: str, path: str, *more: Any, **options: Any) -> Any:
        found = ask(client, method, path, *more, **options)
        if path.endswith("/diff") and not asked:
            for _ in range(8):
                write(service, "gappy", *({"data": n} for n in range(200)))
            asked.append(path)
        return found

    monkeypatch.setattr(Client, "call", first_one_then_eight_more_writes)
    file = tmp_path / "gaps.jsonl"
    done = CliRunner().invoke(app, ["export", "gapp?", "-o", str(file), "--url", service.url])
    assert done.exit_code == 4, done.output
    assert "gappy: seqs 1001 to 1600 are missing (cap)" in done.stderr
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    gap = {"gap_from": 1001, "gap_to": 1600, "reason": "cap"}
    assert [line for line in lines if "$gap" in line] == [{"topic": "gappy", "$gap": gap}]
    assert [line["$seq"] for line in lines if "$seq" in line][:1001] == [*range(1, 1001), 1601]
    assert b"tells of 1 gap:" in topics(service, "import", str(file), "--topic", "gappy:2").stderr


def test_what_is_not_there_or_not_allowed_is_told_by_the_exit_status(service: Service, tmp_path: Path) -> None:
    assert b"no topic nobody" in topics(service, "export", "nobody", status=1).stderr
    assert b"no topic no*" in topics(service, "export", "no*", "-o", str(tmp_path / "x"), status=1).stderr
    assert not list(tmp_path.iterdir())
    assert b"No such file" in topics(service, "import", str(tmp_path / "none"), status=1).stderr
    assert b"--topic" in topics(service, "import", "-", "--raw", status=2, given=b"1\n").stderr
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b'{"topic":"cut","data":1}\n' * 1000)[:-20])
    assert b"ended before" in topics(service, "import", str(tmp_path / "cut.gz"), status=1).stderr


def test_a_key_that_may_not_make_topics_is_told_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "in").write_text('{"topic":"t","$topic":{"config":{"ttl_ms":0}}}\n{"topic":"t","data":1}\n')
    with Service(tmp_path, TOPICS_API_KEYS="s3cret:rw") as service:
        arguments = ["import", str(tmp_path / "in"), "--token", "s3cret"]
        assert b"--no-config" in topics(service, *arguments, status=1).stderr
        assert b": 1 record\n" in topics(service, *arguments, "--no-config").stdout


def test_transfers_outlive_deaths_of_the_service(tmp_path: Path) -> None:
    given = b"".join(b'{"n": %d, "pad": "%b"}\n' % (n, b"x" * 100) for n in range(10_000))
    (tmp_path / "in.jsonl").write_bytes(given)
    with Service(tmp_path) as service:
        command = [sys.executable, "-m", "supervisor.cli"]
        load = [*command, "import", str(tmp_path / "in.jsonl"), "--raw", "--topic", "t", "--batch-records", "100"]
        environment = {**service.environment, "TOPICS_URL": service.url}
        service.kill_group()
        with subprocess.Popen(load, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stderr is not None
            assert b"no answer yet (ConnectError" in process.stderr.readline()
            service.start()
            until(lambda: service.request("GET", "/v0/topics/t")[1].get("head_seq", 0) > 1000, "some records")
            service.kill_group()
            service.start()
            _, told = process.communicate(timeout=180)
            assert process.returncode == 0, told
        assert [record["data"]["n"] for record in everything(service, "t")] == list(range(10_000))
        save = [*command, "export", "t", "-o", str(tmp_path / "out.jsonl")]
        with subprocess.Popen(save, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            part = tmp_path / "out.jsonl.part"
            until(lambda: part.exists() or process.poll() is not None, "the export to begin")
            service.kill_group()
            service.start()
            _, told = process.communicate(timeout=180)
            assert process.returncode == 0, told
        lines = (tmp_path / "out.jsonl").read_bytes().splitlines()
        assert [json.loads(line)["data"]["n"] for line in lines[1:]] == list(range(10_000))
