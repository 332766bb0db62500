"""The directory of a shard, as an orderly stop of an early release left it. Every later release must start from it.

`expected.json` has what that release answered when it started from these files. Fields that answers got later are left
out.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from shardd.storage.disk import RealDisk
from tests.support.harness import Harness

GOLDEN = Path(__file__).parent / "v1_catalog"
TOPICS = ("plain", "capped", "jobs", "volatile", "deleted-some")


def test_a_start_from_a_released_catalog_finds_everything(tmp_path: Path) -> None:
    expected = json.loads((GOLDEN / "expected.json").read_text())
    shutil.copytree(GOLDEN / "shard-00", tmp_path / "shard-00")
    for _ in range(2):  # what the first start writes is read by the second
        shard = Harness(RealDisk(), path=tmp_path / "shard-00")
        assert seen(shard) == expected
        shard.shard.checkpoint_now(True)
        shard.shard.close()


def seen(shard: Harness) -> dict[str, Any]:
    view: dict[str, Any] = {}
    for name in TOPICS:
        state = shard.call("state", name, touch=False)
        for volatile in ("effective_priority", "last_read_ts"):
            del state[volatile]
        for later in ("delayed", "dead_lettering"):
            state.get("queue", {}).pop(later, None)
        view[name] = {"state": state, "records": shard.everything(name)}
    view["cursors"] = [shard.call("cursor_get", "plain", cursor=name) for name in ("a", "b")]
    view["again"] = shard.append("plain", 99, idempotency_key="k1")
    view["peek"] = shard.call("peek_jobs", "jobs", {})
    del view["peek"]["dead_lettering"]
    return view
