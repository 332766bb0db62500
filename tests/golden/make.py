"""Makes golden data: what a release leaves on disk and in buckets, and what it answers when it starts from that.

    unshare --uts sh -c 'hostname golden; python -m tests.golden.make DIRECTORY [--checkout OTHER] [--only data,backup]'

(terms of a bucket have the name of the host) runs the service of this checkout, or of another one, and fills DIRECTORY:

    data/            a data directory with two shards, as a killed service left it
    backup/          `topics backup` of it
    bucket/          the bucket of such a service with one shard; sealed/ and encrypted/: those of services with `KEY`
    expected.json    `view` of services that were started from data/ and from the buckets

Each has topics in catalogs and segments (those of buckets are in a checkpoint), and frames of the log after them.
docs/releasing.md says when to make them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.support.service import Service, until

KEY = "golden-" * 8
KINDS = ("data", "backup", "bucket", "sealed", "encrypted")
_INTERVAL = "TOPICS_CHECKPOINT_INTERVAL_MS"
_BIG = "3600000"
"""Checkpoints are those of orderly stops."""
_NOT_KEPT = shutil.ignore_patterns("LOCK", "ballast-*")


def bucket_settings(kind: str, bucket: Path, key_file: Path) -> dict[str, str]:
    """The settings of a service with a bucket of this kind."""
    found = {"TOPICS_BUCKET": bucket.as_uri(), "TOPICS_REPLICATION": "sync"}
    if kind != "bucket":
        key_file.write_text(KEY)
        found |= {"TOPICS_BUCKET_KEY_FILE": str(key_file), "TOPICS_BUCKET_ENCRYPT": str(kind == "encrypted").lower()}
    return found


# What is written


def ask(service: Service, method: str, path: str, body: Any = None) -> Any:
    status, answer = service.request(method, f"/v0/{path}", body)
    assert status in (200, 201), (method, path, answer)
    return answer


def append(service: Service, topic: str, *records: dict[str, Any], **fields: Any) -> None:
    ask(service, "POST", f"topics/{topic}", {"records": list(records), **fields})


def first(service: Service) -> None:
    """Topics of every class and type, with everything that a record may have."""
    ask(service, "PUT", "topics/plain", {"durability": "fsync"})
    records = [{"data": n, "tag": "ab"[n % 2] + f":{n}", "meta": {"n": n}} for n in range(6)]
    append(service, "plain", *records, {"data": {"b": 1.0, "a": "é"}}, {"data": None, "tag": "käse"}, node="one")
    append(service, "plain", {"data": "again"}, idempotency_key="k1")
    ask(service, "PUT", "topics/plain/cursors/done", {"seq": 2})
    ask(service, "PUT", "topics/capped", {"cap_records": 3})
    append(service, "capped", *({"data": "x" * n} for n in range(5)))
    ask(service, "PUT", "topics/jobs", {"type": "queue", "leases_durable": True, "dead_letter": "dead"})
    append(service, "jobs", *({"data": {"job": n}} for n in range(6)))
    for durability in ("ephemeral", "memory"):
        ask(service, "PUT", f"topics/{durability}", {"durability": durability})
        append(service, durability, {"data": 1}, {"data": 2})
    ask(service, "PUT", "routers/copies", {"source": "plain", "dest": "copied", "create_dest": True})
    append(service, "plain", {"data": "copied", "tag": "a:9"})
    ask(service, "POST", "watch", {"topics": {"plain": {"from_seq": 0}}})


def second(service: Service) -> None:
    """Deletions, and jobs in every state."""
    ask(service, "POST", "topics/plain/delete", {"before_seq": 2})
    ask(service, "POST", "topics/plain/delete", {"match": ["tag", "Eq", "b:3"]})
    append(service, "gone", {"data": 1})
    ask(service, "DELETE", "topics/gone")
    ask(service, "POST", "topics/jobs/claim", {"node": "w", "max": 3, "lease_ms": 3_600_000})
    ask(service, "POST", "topics/jobs/ack", {"node": "w", "seqs": [1]})
    ask(service, "POST", "topics/jobs/nack", {"node": "w", "seqs": [2], "delay_ms": 0})


def third(service: Service) -> None:
    """Frames that no catalog covers. With a bucket, the last one is there when it is acknowledged, and so are all
    before."""
    append(service, "jobs", {"data": {"job": 6}, "tag": "late"})
    ask(service, "PUT", "topics/plain/cursors/other", {"seq": 4})
    ask(service, "POST", "topics/plain/delete", {"match": ["tag", "Glob", "a:4*"]})
    append(service, "plain", {"data": "last"})
    until(lambda: _copied(service, 2), "both copies")
    ask(service, "PUT", "topics/late", {"durability": "fsync"})
    append(service, "late", {"data": [1, {"two": 3}]})


# What is read


def view(service: Service) -> dict[str, Any]:
    """What must be the same in every later release. How far seqs were reserved is not, because that depends on the
    machine; nor are the times of copies, because a start makes them again."""
    until(lambda: _copied(service, 2), "copies of all that is in the log")
    found: dict[str, Any] = {}
    for entry in ask(service, "GET", "topics?page_size=1000")["topics"]:
        topic = entry["topic"]
        state = ask(service, "GET", f"topics/{topic}?touch=false")
        if state["config"]["type"] == "queue":
            jobs = ask(service, "POST", f"topics/{topic}/peek", {"max": 1000})["jobs"]
            content = [{name: job.get(name) for name in ("$seq", "$tag", "data", "deliveries")} for job in jobs]
        else:
            question = {"from_seq": 0, "limit": 1000, "include_tags": True, "include_meta": True}
            content = ask(service, "POST", f"topics/{topic}/diff", question)["records"]
        if topic == "copied":
            content = [{name: value for name, value in record.items() if name != "$ts"} for record in content]
        cursors = ask(service, "GET", f"topics/{topic}/cursors")["cursors"]
        kept = {name: state[name] for name in ("count", "bytes", "epoch", "config")}
        found[topic] = {**kept, "cursors": [[each["cursor"], each["seq"]] for each in cursors], "content": content}
    routers = ask(service, "GET", "routers")["routers"]
    return {"topics": found, "routers": [[each[name] for name in ("router", "source", "dest")] for each in routers]}


def _copied(service: Service, count: int) -> bool:
    status, state = service.request("GET", "/v0/topics/copied?touch=false")
    return bool(status == 200 and state["count"] >= count)


# The tool


def run(directory: Path, bucket: Path | None = None, **settings: Any) -> Service:
    """A service that wrote everything and was killed."""
    directory.mkdir()
    service = Service(directory, **settings, **{_INTERVAL: _BIG})
    service.start()
    first(service)
    until(lambda: _copied(service, 1), "the copy")
    service.stop()
    if bucket:
        service.environment[_INTERVAL] = "100"
    service.start()
    second(service)
    if bucket:
        until(lambda: any(bucket.glob("shard-00/manifests/*")), "a checkpoint in the bucket")
    service.stop()
    service.environment[_INTERVAL] = _BIG
    service.start()
    third(service)
    service.kill_group()
    return service


def make(to: Path, kinds: list[str]) -> None:
    to.mkdir(parents=True)
    found = {}
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        service = run(work / "service", shards=2)
        shutil.copytree(service.data_dir, to / "data", ignore=_NOT_KEPT)
        assert all(any((to / "data" / shard / "topics").iterdir()) for shard in ("shard-00", "shard-01"))
        if "backup" in kinds:
            command = [sys.executable, "-m", "supervisor.cli", "backup", str(to / "backup")]
            subprocess.run(command, env=service.environment, check=True)
        found["data"] = started(service)
        for kind in kinds:
            if kind not in ("data", "backup"):
                bucket = work / kind
                bucket.mkdir()
                service = run(work / f"with-{kind}", bucket, shards=1, **bucket_settings(kind, bucket, work / "key"))
                shutil.copytree(bucket, to / kind)
                found[kind] = started(service)
    (to / "expected.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def started(service: Service) -> dict[str, Any]:
    """`view` of the service, which is closed then."""
    service.start()
    try:
        return view(service)
    finally:
        service.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--checkout", type=Path, help="whose service is run; this one by default")
    parser.add_argument("--only", default=",".join(KINDS))
    given = parser.parse_args()
    if socket.gethostname() != "golden":
        parser.error("buckets have the name of the host, so it must be golden: see this module")
    to = given.directory.absolute()
    if given.checkout:
        os.environ["PYTHONPATH"] = str(given.checkout.absolute())
        os.chdir(given.checkout)
    make(to, given.only.split(","))


if __name__ == "__main__":
    main()
