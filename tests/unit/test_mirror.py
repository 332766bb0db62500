"""Unit tests are beside their module's path: `tests/unit/<package>/<path>/test_<module>.py`."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.unit.test_tidy import PACKAGES

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "tests" / "unit"
DECIDES = 5
"""A module with as many branches as this decides something."""
MIRRORED = 0.8
"""The least share of the modules that decide something with a test of their own."""
WITHOUT: set[str] = {
    "gateway/api/forwarding.py",
    "gateway/api/sockets.py",
    "gateway/api/stream_requests.py",
    "gateway/contract/json_schemas.py",
    "gateway/observe/families.py",
    "gateway/process.py",
    "gateway/server/asgi.py",
    "gateway/server/listener.py",
    "gateway/server/pages.py",
    "gateway/streams/prefix_feed.py",
    "gateway/streams/watch_request.py",
    "packages/topics-client/topics_client/client.py",
    "packages/topics-client/topics_client/items.py",
    "proto/process/fork_server.py",
    "pyspark_topics/files.py",
    "pyspark_topics/jobs/archive.py",
    "pyspark_topics/jobs/replay.py",
    "pyspark_topics/jobs/store.py",
    "pyspark_topics/lake/deltars.py",
    "shardd/changes/transactions.py",
    "shardd/checkpoint/adopt.py",
    "shardd/checkpoint/write.py",
    "shardd/offline/offline_routers.py",
    "shardd/offline/reshard.py",
    "shardd/offline/rewind.py",
    "shardd/offline/salvage.py",
    "shardd/operations/append.py",
    "shardd/recovery/quarantine.py",
    "shardd/recovery/replay.py",
    "shardd/replication/checkpoint_files.py",
    "shardd/replication/objects.py",
    "shardd/routers/copy_recovery.py",
    "shardd/routers/source.py",
    "shardd/storage/segment.py",
    "shardd/storage/wal.py",
    "shardd/topic/topic.py",
    "supervisor/cli/commands/bench.py",
    "supervisor/cli/commands/config.py",
    "supervisor/cli/commands/context.py",
    "supervisor/cli/commands/doctor.py",
    "supervisor/cli/commands/read.py",
    "supervisor/cli/commands/replica.py",
    "supervisor/cli/commands/transfer.py",
    "supervisor/cli/remote.py",
}
"""Modules that decide something and have no test of their own. A new one has; who writes one for these takes it off."""


def branches(source: str) -> int:
    """How many branches of a module are taken or not: `if`, `while`, `case`, and conditions of expressions."""
    found = 0
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.If):
            found += not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING")
        elif isinstance(node, ast.While | ast.IfExp | ast.match_case):
            found += 1
        elif isinstance(node, ast.comprehension):
            found += len(node.ifs)
    return found


def modules() -> dict[Path, Path]:
    """All modules of the packages, by the path of the test that mirrors them."""
    found: dict[Path, Path] = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            within = path.relative_to(ROOT / package) if "/" in package else path.relative_to(ROOT)
            if path.stem in ("__init__", "__main__") and not branches(path.read_text()):
                continue
            mirror = UNIT / within.parent / f"test_{path.stem.strip('_')}.py"
            assert found.setdefault(mirror, path) == path, f"{mirror} is the test of two modules"
    return found


def deciding() -> dict[Path, Path]:
    """Those that decide something."""
    return {mirror: path for mirror, path in modules().items() if branches(path.read_text()) >= DECIDES}


def test_branches_are_counted() -> None:
    assert branches("if TYPE_CHECKING:\n  import x\nif a:\n  b\nelif c:\n  d\n") == 2
    assert branches("while e: pass\nf = g if h else [i for i in j if k]\n") == 3
    assert branches("match a:\n  case 1: b\n  case _: c\n") == 2


def test_every_unit_test_has_the_path_of_a_module() -> None:
    """Those beside the packages' folders are of the repository."""
    known = modules()
    assert not [
        str(path.relative_to(ROOT)) for path in UNIT.rglob("test_*.py") if path.parent != UNIT and path not in known
    ]


def test_modules_that_decide_something_have_a_test_of_their_own() -> None:
    lacking = {str(path.relative_to(ROOT)) for mirror, path in deciding().items() if not mirror.exists()}
    assert not lacking - WITHOUT, "write a test with the module's path"
    assert not WITHOUT - lacking, "take these off the list: they have a test, decide nothing or are gone"


def test_most_modules_that_decide_something_have_one() -> None:
    assert len(deciding()) - len(WITHOUT) >= MIRRORED * len(deciding())
