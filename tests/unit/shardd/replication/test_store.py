"""The object store: what it promises, and its errors as sentences."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import obstore
import pytest

from shardd.replication.names import SERVICE
from shardd.replication.store import (
    Absent,
    Exists,
    MissingBucket,
    Refused,
    Store,
    StoreError,
    Throttled,
    UnknownOutcome,
    Unreachable,
    Unsuitable,
    check_promises,
    open_store,
)
from tests.support.bucket import MemoryStore


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else open_store(f"file://{tmp_path}")


def test_an_object_is_created_once_read_and_deleted(store: Store) -> None:
    store.create("shard-00/log/1", b"first")
    with pytest.raises(Exists, match="exists already"):
        store.create("shard-00/log/1", b"second")
    assert bytes(store.get("shard-00/log/1")) == b"first"
    assert bytes(store.get_range("shard-00/log/1", 1, 3)) == b"irs"
    store.put("shard-00/log/1", b"third")
    assert bytes(store.get("shard-00/log/1")) == b"third"
    store.delete("shard-00/log/1")
    store.delete("shard-00/log/1")
    with pytest.raises(Absent, match="does not exist"):
        store.get("shard-00/log/1")
    with pytest.raises(Absent):
        store.get_range("shard-00/log/1", 0, 3)


def test_a_listing_is_in_order_and_begins_behind_a_name(store: Store) -> None:
    for name in ("a/3", "a/1", "a/2", "b/1"):
        store.create(name, b"x" * int(name[-1]))
    assert [(each.name, each.size) for each in store.list("a/")] == [("a/1", 1), ("a/2", 2), ("a/3", 3)]
    assert [each.name for each in store.list("a/", after="a/1")] == ["a/2", "a/3"]
    assert list(store.list("c/")) == []


def test_a_store_that_keeps_its_promises_is_accepted_and_left_clean(store: Store) -> None:
    check_promises(store, "shard-00/")
    assert list(store.list("shard-00/")) == []


def test_a_store_that_ignores_conditions_is_refused() -> None:
    store = MemoryStore()
    store.conditional = False
    with pytest.raises(Unsuitable, match="8 of 8 clients created the same object"):
        check_promises(store, "shard-00/")


def test_a_store_that_does_not_find_what_was_written_is_refused() -> None:
    store = MemoryStore()
    store.fault = lambda operation, name: Absent("not yet") if operation == "get" else None
    with pytest.raises(Unsuitable, match="did not find what was written"):
        check_promises(store, "shard-00/")


_RACE = """
import sys
from shardd.replication.store import Exists, open_store
store = open_store(sys.argv[1])
sys.stdout.write("ready\\n"); sys.stdout.flush(); sys.stdin.readline()
won = []
for number in range(200):
    try:
        store.create(f"log/{number}", sys.argv[2].encode())
        won.append(number)
    except Exists:
        pass
print(*won)
"""


def test_processes_that_race_for_files_create_each_once(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", _RACE, url, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for number in range(3)
    ]
    for each in racers:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    wins: list[tuple[int, int]] = []
    for each in racers:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    for racer, each in enumerate(racers):
        wins += [(int(number), racer) for number in each.communicate()[0].split()]
    assert sorted(number for number, _ in wins) == list(range(200))
    store = open_store(url)
    assert all(bytes(store.get(f"log/{number}")) == str(racer).encode() for number, racer in wins)
    assert len(list(store.list("log/"))) == 200  # nothing half written is left


def test_a_directory_that_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    folder = tmp_path / "bucket"
    folder.mkdir()
    store = open_store(f"file://{folder}")
    folder.rmdir()
    for call in (lambda: store.create("a", b""), lambda: list(store.list("a/")), lambda: store.get("a")):
        with pytest.raises(MissingBucket, match="the directory does not exist"):
            call()
    assert not folder.exists()
    folder.mkdir()
    store.create("a", b"")


def test_a_directory_that_goes_during_a_call_is_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, gone = tmp_path / "bucket", tmp_path / "gone"
    folder.mkdir()
    store = open_store(f"file://{folder}")
    store.create(SERVICE, b"{}")
    store.create("terms/1", b"")
    calls: dict[str, Callable[[], object]] = {
        "list": lambda: list(store.list("terms/")),
        "get": lambda: store.get("terms/1"),
        "put": lambda: store.create("terms/2", b""),
    }
    for operation, call in calls.items():
        plain: Any = getattr(obstore, operation)

        def goes(*arguments: Any, plain: Any = plain, **options: Any) -> Any:
            folder.rename(gone)
            return plain(*arguments, **options)

        monkeypatch.setattr(obstore, operation, goes)
        with pytest.raises(MissingBucket, match="mount"):
            call()
        monkeypatch.setattr(obstore, operation, plain)
        with pytest.raises(MissingBucket, match="mount"):
            store.get("terms/1")
        shutil.rmtree(folder, ignore_errors=True)  # what a write left in the wrong place
        gone.rename(folder)
    assert [each.name for each in store.list("terms/")] == ["terms/1"]


def test_a_write_to_a_directory_that_is_replaced_meanwhile_is_not_taken_for_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bucket"
    folder.mkdir()
    store = open_store(f"file://{folder}")
    store.create(SERVICE, b"{}")
    plain = obstore.put

    def goes(*arguments: Any, **options: Any) -> Any:
        folder.rename(tmp_path / "gone")
        folder.mkdir()
        (folder / SERVICE).touch()
        return plain(*arguments, **options)

    monkeypatch.setattr(obstore, "put", goes)
    with pytest.raises(UnknownOutcome, match="replaced"):
        store.create("terms/1", b"")


@pytest.mark.parametrize("url", ["ftp://bucket", "bucket", "s3:bucket"])
def test_a_url_of_another_kind_is_refused(url: str) -> None:
    with pytest.raises(Unsuitable, match="must begin with s3://"):
        open_store(url)


class _Answer(BaseHTTPRequestHandler):
    status = 200
    text = ""

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.do_GET()

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("content-length", str(len(self.text)))
        self.end_headers()
        self.wfile.write(self.text.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[_Answer]]:
    class Answer(_Answer):
        pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_address[1]}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
        yield Answer
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "text", "of_create", "of_get"),
    [
        (503, "", Throttled, Throttled),
        (429, "", Throttled, Throttled),
        (500, "", UnknownOutcome, Unreachable),
        (401, "", Refused, Refused),
        (403, "<Error><Code>SignatureDoesNotMatch</Code></Error>", Refused, Refused),
        (409, "", Exists, Exists),
        (412, "", Exists, Exists),
        (404, "<Error><Code>NoSuchBucket</Code></Error>", MissingBucket, MissingBucket),
        (404, "<Error><Code>NoSuchKey</Code></Error>", Absent, Absent),
    ],
)
def test_each_answer_of_a_bucket_is_one_of_few_errors(
    answers: type[_Answer], status: int, text: str, of_create: type[StoreError], of_get: type[StoreError]
) -> None:
    answers.status, answers.text = status, text
    store = open_store("s3://bucket/prefix")
    with pytest.raises(StoreError) as created:
        store.create("name", b"x")
    with pytest.raises(StoreError) as read:
        store.get("name")
    assert (type(created.value), type(read.value)) == (of_create, of_get)
    assert "s3://bucket/prefix" in str(created.value)
    assert "Debug source" not in str(created.value)


def test_a_bucket_without_a_server_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    with pytest.raises(Unreachable, match="cannot be reached"):
        open_store("s3://bucket/prefix").create("name", b"x")


def test_an_error_that_has_a_name_of_the_operator_in_it_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    with pytest.raises(Unreachable, match="cannot be reached"):
        open_store("s3://our-credentials/of/Credentials").get("credential")
