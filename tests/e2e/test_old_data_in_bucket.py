"""Claims about data of an early release and a bucket: `topics restore --from` makes the same of it, and sound."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.support.service import Service, ask

GOLDEN = Path(__file__).parents[1] / "golden" / "v1_catalog" / "shard-00"
PATIENCE_S = 60.0


def topics_command(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "supervisor.cli", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def everything(running: Service) -> dict[str, Any]:
    """Every record of every topic with all that is kept of it, and what each topic says of itself."""
    found: dict[str, Any] = {}
    listed = running.request("GET", "/v0/topics?page_size=1000")[1]["topics"]
    connection = running.connect()
    try:
        for topic in sorted(each["topic"] for each in listed):
            path = f"/v0/topics/{quote(topic, safe='')}"
            _, state = ask(connection, "GET", f"{path}?touch=false")
            _, cursors = ask(connection, "GET", f"{path}/cursors")
            pages: list[Any] = []
            at, caught_up = 0, False
            while not caught_up:
                body = {"from_seq": at, "limit": 1000, "include_tags": True, "include_meta": True}
                status, page = ask(connection, "POST", f"{path}/diff", body)
                if status != 200:  # a queue has jobs, which are peeked at
                    status, page = ask(connection, "POST", f"{path}/peek", {"max": 1000})
                    assert status == 200, page
                    page |= {"next_from_seq": 0, "caught_up": True}
                page.pop("performance")
                pages.append(page)
                at, caught_up = page["next_from_seq"], page["caught_up"]
            kept = {name: state[name] for name in ("head_seq", "earliest_seq", "count", "bytes", "epoch")}
            found[topic] = {"state": kept, "cursors": cursors["cursors"], "pages": pages}
    finally:
        connection.close()
    return found


def test_data_of_an_early_release_is_restored_from_its_bucket_as_it_was(tmp_path: Path) -> None:
    for name in ("bucket", "one", "two"):
        (tmp_path / name).mkdir()
    url = (tmp_path / "bucket").as_uri()
    settings = {"TOPICS_BUCKET": url, "TOPICS_REPLICATION": "sync", "TOPICS_TERM_TTL_MS": "5000"}
    one = Service(tmp_path / "one", shards=1, **settings)
    shutil.copytree(GOLDEN, one.data_dir / "shard-00")
    (one.data_dir / "manifest.json").write_text('{"format": 1, "shards": 1, "created_ms": 1700000000000}')
    try:
        one.start(wait=False).wait_ready(PATIENCE_S)
        before = everything(one)
        one.stop(timeout_s=PATIENCE_S)
    finally:
        one.close()
    two = Service(tmp_path / "two", shards=1)
    topics_command(two.environment, "restore", "--reserve", "0", "--from", url)
    try:
        two.start(wait=False).wait_ready(PATIENCE_S)
        after = everything(two)
        two.stop(timeout_s=PATIENCE_S)
    finally:
        two.close()
    # The records of an ephemeral topic end with each start, and its seqs go on behind those that were reserved.
    assert before.pop("volatile")["state"]["count"] == after.pop("volatile")["state"]["count"] == 0
    assert len(before) > 3
    assert any(page["records"] for each in before.values() for page in each["pages"] if "records" in page)
    assert json.dumps(after, sort_keys=True) == json.dumps(before, sort_keys=True)
    topics_command(two.environment, "verify")
    topics_command(two.environment | settings, "replica", "verify")
