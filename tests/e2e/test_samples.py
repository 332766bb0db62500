"""Each sample of the OpenAPI document runs as printed, against a service that asks for keys and one that does not.

The samples of a language run in one process, in the order of the document, those that delete something last.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.programs import leave_out
from tests.support.service import Service

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "packages" / "topics-client-ts"
KEY = "s3cret"
STREAMS = ("work", "watch_stream")
MADE_UP = "wid_Zm9vYmFyYmF6cXV4MTIzNA"
TAG = "tenant42:job-8800"
Samples = dict[str, str]
"""Source by name of the operation."""
Runner = Callable[[Samples, dict[str, str], Path], None]

IN_PYTHON = """
import json, os, sys, traceback
for name, source in json.load(sys.stdin).items():
    try:
        exec(compile(source, name, "exec"), {})
    except Exception:
        sys.exit(f"{name}\\n{source}\\n{traceback.format_exc()}")
"""
IN_NODE = """
for (const name of process.argv.slice(2)) {
  try {
    await import(`./${name}.js`);
  } catch (error) {
    console.error(name, error);
    process.exit(1);
  }
}
"""


def done(*command: str | Path, cwd: Path, stdin: str = "", **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("npm_", "TOPICS_"))}
    words = [str(each) for each in command]
    ran = subprocess.run(
        words,
        input=stdin,
        cwd=cwd,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, f"{words[:3]}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


def run_curl(samples: Samples, environment: dict[str, str], directory: Path) -> None:
    script = "\n".join(f"{source} || echo '{name} failed'; echo" for name, source in samples.items())
    answers = [line for line in done("bash", cwd=directory, stdin=script, **environment).splitlines() if line]
    told = [line for line in answers if not line.startswith(("#", "topics_"))]  # without the lines of the metrics
    assert len(told) == len([name for name in samples if name != "metrics"])
    assert [line for line in told if "error" in json.loads(line)] == []


def run_python(samples: Samples, environment: dict[str, str], directory: Path) -> None:
    path = str(ROOT / "packages" / "topics-client")
    done(sys.executable, "-c", IN_PYTHON, cwd=directory, stdin=json.dumps(samples), PYTHONPATH=path, **environment)


def compile_typescript(samples: Samples, directory: Path) -> None:
    """Check and compile all samples at once, unless that was done already."""
    told = {directory / f"{name}.ts": source for name, source in samples.items()}
    if all(path.exists() and path.read_text() == source for path, source in told.items()):
        return
    for path, source in told.items():
        path.write_text(source)
    (directory / "run.mjs").write_text(IN_NODE)
    compiler, types = PACKAGE / "node_modules" / ".bin" / "tsc", PACKAGE / "node_modules" / "@types"
    how = ["--strict", "--target", "es2022", "--module", "nodenext", "--types", "node", "--typeRoots", types]
    done(compiler, *how, *told, cwd=directory)


def run_typescript(samples: Samples, environment: dict[str, str], directory: Path) -> None:
    done("node", "--no-warnings", "run.mjs", *samples, cwd=directory, **environment)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that has the TypeScript client installed, from a package made of a copy of its sources."""
    ready = subprocess.run(
        [ROOT / "tools" / "install-npm.sh"], capture_output=True, text=True, timeout=300, check=False
    )
    if ready.returncode:
        leave_out(ready.stderr.strip().rpartition("\n")[2])
    copy, project = tmp_path_factory.mktemp("copy") / "client", tmp_path_factory.mktemp("project")
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("node_modules", "dist"))
    (copy / "node_modules").symlink_to(PACKAGE / "node_modules")
    quiet = {"npm_config_loglevel": "error"}
    done("npm", "pack", "--pack-destination", project, cwd=copy, **quiet)
    (project / "package.json").write_text('{"type":"module"}')
    (made,) = project.glob("*.tgz")
    done("npm", "install", "--offline", "--no-audit", "--no-fund", f"./{made.name}", cwd=project, **quiet)
    return project


@pytest.fixture(scope="module", params=["with a key", "without keys"])
def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Service, dict[str, str]]]:
    """A service, and the environment of its clients."""
    keyed = request.param == "with a key"
    with Service(tmp_path_factory.mktemp("samples"), **({"TOPICS_API_KEYS": KEY} if keyed else {})) as running:
        yield running, {"TOPICS_URL": running.url, **({"TOPICS_TOKEN": KEY} if keyed else {})}


def of(document: dict[str, Any], label: str, *, deleting: bool) -> Samples:
    """The samples of one language, without streams."""
    return {
        operation["operationId"]: sample["source"]
        for methods in document["paths"].values()
        for method, operation in methods.items()
        for sample in operation["x-codeSamples"]
        if sample["label"] == label and (method == "delete") is deleting and operation["operationId"] not in STREAMS
    }


def asking(environment: dict[str, str]) -> httpx.Client:
    key = environment.get("TOPICS_TOKEN")
    return httpx.Client(base_url=environment["TOPICS_URL"], headers={"Authorization": f"Bearer {key}"} if key else {})


def prepare(client: httpx.Client) -> None:
    """The queue that the examples are about, with jobs in it, and a topic for dead letters."""
    for topic in ("jobs", "audit", "jobs:dead"):
        client.delete(f"/v0/topics/{topic}")
    assert client.put("/v0/topics/jobs:dead", json={}).status_code == 201
    assert client.put("/v0/topics/jobs", json={"type": "queue"}).status_code == 201
    jobs = [{"data": number, "tag": "other"} for number in range(40)]
    assert client.post("/v0/topics/jobs", json={"records": jobs}).status_code == 200


def check(client: httpx.Client) -> None:
    """What the samples that delete nothing have done, but for the deletion of records."""
    state = client.get("/v0/topics/jobs").json()
    assert (state["config"]["ttl_ms"], state["config"]["dead_letter"]) == (86400000, "jobs:dead")
    assert state["head_seq"] == 41
    read = client.post("/v0/topics/jobs/diff", json={"include_tags": True}).json()["records"]
    assert {each["$tag"] for each in read} == {"other"}, f"a deletion by the tag {TAG} is among the samples"
    assert client.get("/v0/topics/jobs/cursors/billing").json()["seq"] == 2
    assert client.get("/v0/routers/jobs>audit").json()["dest"] == "audit"


@pytest.mark.parametrize("label", ["curl", "Python", "TypeScript"])
def test_every_sample_runs_as_printed(
    service: tuple[Service, dict[str, str]], label: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    running, environment = service
    document = running.request("GET", "/v0/openapi.json")[1]
    runners: dict[str, Runner] = {"curl": run_curl, "Python": run_python, "TypeScript": run_typescript}
    directory: Path = request.getfixturevalue("packed") if label == "TypeScript" else tmp_path
    with asking(environment) as client:
        prepare(client)
        kept, deleting = of(document, label, deleting=False), of(document, label, deleting=True)
        assert len(kept) >= 18
        assert deleting.keys() == {"delete_topic", "delete_cursor", "delete_router"}
        if label == "TypeScript":
            compile_typescript(kept | deleting, directory)
        runners[label](kept, environment, directory)
        check(client)
        order = ("delete_router", "delete_cursor", "delete_topic")
        runners[label]({name: deleting[name] for name in order}, environment, directory)
        assert client.get("/v0/routers/jobs>audit").status_code == 404
        assert client.get("/v0/topics/jobs").status_code == 404


@pytest.mark.parametrize(("name", "said"), [("work", "event: job"), ("watch_stream", "event: record")])
def test_the_samples_of_streams_show_events(
    service: tuple[Service, dict[str, str]], name: str, said: str, tmp_path: Path
) -> None:
    running, environment = service
    document = running.request("GET", "/v0/openapi.json")[1]
    operations = [each for methods in document["paths"].values() for each in methods.values()]
    (sample,) = next(each["x-codeSamples"] for each in operations if each["operationId"] == name)
    with asking(environment) as client:
        prepare(client)
        wid = client.post("/v0/watch", json={"topics": {"jobs": {"from_seq": 0}}}).json()["wid"]
        command = ["bash", "-c", "exec " + sample["source"].replace(MADE_UP, wid)]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**kept, **environment}) as curl:
            assert curl.stdout is not None
            try:
                assert any(said in line for line in curl.stdout)
            finally:
                curl.kill()
