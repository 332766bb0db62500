"""Three generators make clients of the OpenAPI document: without a warning, with every operation, and each compiles.

The generators and their versions: openapi-typescript and @hey-api/openapi-ts, as the lock file of the TypeScript client
says, and openapi-python-client, as `tools/install-generators.sh` says.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.contract.openapi import document
from gateway.contract.operations import OPERATIONS
from proto.model.limits import Limits
from tests.support.programs import leave_out
from tests.support.service import Service

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "packages" / "topics-client-ts" / "node_modules" / ".bin"
GENERATORS = Path(sys.executable).parents[1] / "generators"
NAMES = {operation.name for operation in OPERATIONS}
STRICT = (
    "--noEmit",
    "--strict",
    "--noUnusedLocals",
    "--noImplicitReturns",
    "--target",
    "es2022",
    "--lib",
    "es2022,dom,dom.iterable",
)
USE = """
import sys
from made import AuthenticatedClient
from made.api.queues import claim, ack
from made.api.topics import append, configure_topic, delete_records, diff, topic_state
from made.models import *

client = AuthenticatedClient(base_url=sys.argv[1], token=sys.argv[2])
patch = ConfigPatch(type_=ConfigPatchTypeType1.QUEUE)
assert configure_topic.sync("g", client=client, body=patch).created
made = NewRecord(data={"n": 2 ** 60}, tag="t")
assert append.sync("g", client=client, body=AppendRequest(records=[made, made])).first_seq == 1
read = diff.sync("g", client=client, body=DiffRequest(from_seq=1, include_tags=True))
assert [(each.seq, each.tag, each.data) for each in read.records] == [(2, "t", {"n": 2 ** 60})]
job, = claim.sync("g", client=client, body=ClaimRequest(node="w")).claimed
assert ack.sync("g", client=client, body=AckRequest(node="w", seqs=[job.seq], lease_ids=[job.lease_id])).acked == 1
assert delete_records.sync("g", client=client, body=DeleteRequest(match=["tag", "Glob", "t*"])).deleted == 1
state = topic_state.sync("g", client=client)
assert (state.count, state.config.type_) == (0, "queue")
refused = topic_state.sync("none", client=client)
assert (refused.error.code, refused.error.detail.to_dict()) == ("topic_not_found", {"topic": "none"})
"""


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """What a command prints, both outputs. It must succeed."""
    words = [str(each) for each in command]
    told = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(
        words, cwd=cwd, env={**os.environ, "NO_COLOR": "1", **environment}, timeout=120, check=False, **told
    )
    assert done.returncode == 0, done.stdout
    return str(done.stdout)


def installed(script: str, *arguments: str | Path) -> None:
    command = [ROOT / "tools" / script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        leave_out(done.stderr.strip().rpartition("\n")[2])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The document, in a file."""
    path = tmp_path / "openapi.json"
    path.write_text(json.dumps(document(OPERATIONS, Limits())))
    return path


def camel_cased(name: str) -> str:
    return re.sub("_(.)", lambda found: found[1].upper(), name)


def test_openapi_typescript(source: Path) -> None:
    installed("install-npm.sh")
    told = run(TOOLS / "openapi-typescript", source, "--output", "made.ts", cwd=source.parent)
    assert not re.search("warn|error", told, re.IGNORECASE), told
    run(TOOLS / "tsc", *STRICT, "made.ts", cwd=source.parent)
    operations = (source.parent / "made.ts").read_text().partition("export interface operations {")[2]
    assert set(re.findall(r"^    (\w+): \{$", operations, re.MULTILINE)) == NAMES


def test_hey_api(source: Path) -> None:
    installed("install-npm.sh")
    if tuple(map(int, run("node", "-p", "process.versions.node", cwd=source.parent).split("."))) < (20, 19):
        leave_out("Node 20.19 or later, for @hey-api/openapi-ts")
    plugins = ("@hey-api/typescript", "@hey-api/sdk", "@hey-api/client-fetch")
    told = run(TOOLS / "openapi-ts", "--input", source, "--output", "made", "--plugins", *plugins, cwd=source.parent)
    assert not re.search("warn|error", told, re.IGNORECASE), told
    resolved = ("--module", "esnext", "--moduleResolution", "bundler")
    run(TOOLS / "tsc", *STRICT, *resolved, "made/index.ts", "made/sdk.gen.ts", cwd=source.parent)
    made = re.findall(r"^export const (\w+) = ", (source.parent / "made" / "sdk.gen.ts").read_text(), re.MULTILINE)
    assert sorted(made) == sorted(map(camel_cased, NAMES))


def test_openapi_python_client(source: Path, new_service: Callable[..., Service]) -> None:
    installed("install-generators.sh", GENERATORS)
    settings = source.parent / "settings.yml"
    settings.write_text("post_hooks: []")  # it would format with ruff, if that is installed
    generator = GENERATORS / "bin" / "openapi-python-client"
    made = ("--output-path", "made", "--meta", "none", "--config", settings)
    told = run(generator, "generate", "--path", source, *made, "--fail-on-warning", cwd=source.parent)
    assert not re.search("warn|error|unable", told, re.IGNORECASE), told
    modules = {path.stem for path in (source.parent / "made" / "api").glob("*/*.py")} - {"__init__"}
    assert modules == NAMES
    checked = ("--python-version", "3.11", "--config-file=", "--cache-dir", "mypy", "--strict")
    run(sys.executable, "-m", "mypy", *checked, "--package", "made", cwd=source.parent)
    service = new_service(TOPICS_API_KEYS="s3cret").start()
    python = GENERATORS / "bin" / "python"
    run(python, "-W", "error", "-c", USE, service.url, "s3cret", cwd=source.parent)
