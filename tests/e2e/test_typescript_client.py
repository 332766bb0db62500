"""The TypeScript client: built from the document of a service, packed, and run with real services in Node."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_status_page import opened
from tests.support.doc_blocks import blocks
from tests.support.doc_blocks import run as run_block
from tests.support.programs import leave_out
from tests.support.service import Service, until

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "packages" / "topics-client-ts"
TOOLS = PACKAGE / "node_modules" / ".bin"
KEY = "s3cret"
NODE = ("node", "--experimental-websocket")  # Node 20 has the WebSocket behind this flag
PAGE = ROOT / "docs" / "clients.md"


def run(*command: str | Path, cwd: Path = PACKAGE, seconds: float = 120, **environment: str) -> str:
    # Without the settings of an npm that runs this one: they would take the place of its own.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("npm_")}
    done = subprocess.run(
        [str(each) for each in command],
        cwd=cwd,
        env={**kept, "npm_config_loglevel": "error", **environment},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    """The client, compiled as `npm run build` does: with --strict, and without the types of Node."""
    done = subprocess.run([ROOT / "tools" / "install-npm.sh"], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        leave_out(done.stderr.strip().rpartition("\n")[2])
    shutil.rmtree(PACKAGE / "dist", ignore_errors=True)
    run(TOOLS / "tsc")


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("keyed"), TOPICS_API_KEYS=KEY) as running:
        yield running


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that has the packed client installed."""
    directory: Path = tmp_path_factory.mktemp("packed")
    (told,) = json.loads(run("npm", "pack", "--json", "--ignore-scripts", "--pack-destination", directory))
    files = {each["path"] for each in told["files"]}
    assert {"package.json", "README.md", "LICENSE", "dist/index.js", "dist/index.d.ts"} <= files
    assert all(path.startswith("dist/") or path in ("package.json", "README.md", "LICENSE") for path in files)
    (directory / "package.json").write_text('{"type":"module"}')
    run("npm", "install", "--offline", "--no-audit", "--no-fund", told["filename"], cwd=directory)
    return directory


def documents(shared: Service, keyed: Service, directory: Path) -> list[Path]:
    """Both documents of a service without keys, and of one with keys."""
    found = []
    for name, service in (("open", shared), ("keyed", keyed)):
        for kind in ("openapi", "asyncapi"):
            found.append(directory / f"{name}-{kind}.json")
            found[-1].write_text(json.dumps(service.request("GET", f"/v0/{kind}.json")[1]))
    return found


def test_the_generated_files_are_those_of_the_document_that_a_service_gives(
    shared: Service, keyed: Service, tmp_path: Path
) -> None:
    documents(shared, keyed, tmp_path)
    run("node", "generate.mjs", tmp_path / "keyed-openapi.json", tmp_path)
    for name in ("schema.ts", "operations.ts"):
        generated = (tmp_path / name).read_text()
        assert generated == (PACKAGE / "src" / name).read_text(), f"{name} is old: its README says how it is made"


def test_the_documents_have_no_findings(shared: Service, keyed: Service, tmp_path: Path) -> None:
    told = run(
        TOOLS / "redocly",
        *("lint", "--config", PACKAGE / "lint.yaml", "--format", "json"),
        *documents(shared, keyed, tmp_path),
        REDOCLY_TELEMETRY="off",
        REDOCLY_SUPPRESS_UPDATE_NOTICE="true",
    )
    assert json.JSONDecoder().raw_decode(told[told.index("{") :])[0]["problems"] == []


def test_parts_of_the_client() -> None:
    run(*NODE, "--test", "test/")


def test_every_operation_with_real_services(shared: Service, keyed: Service) -> None:
    addresses = {"TOPICS_URL": shared.url, "TOPICS_KEYED_URL": keyed.url, "TOPICS_KEY": KEY}
    run(*NODE, "--test", "e2e/", **addresses)


CODE = re.findall(r"```ts\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_every_example_of_the_page_runs_as_printed(shared: Service, packed: Path) -> None:
    assert CODE
    for number, code in enumerate(CODE):
        (packed / f"example{number}.ts").write_text(code.replace("http://127.0.0.1:4000", shared.url))
    sources = [f"example{number}.ts" for number in range(len(CODE))]
    how = ["--strict", "--target", "es2022", "--module", "nodenext", "--types", "node"]
    run(TOOLS / "tsc", *how, "--typeRoots", PACKAGE / "node_modules" / "@types", *sources, cwd=packed)
    for source in sources:
        run(*NODE, "--no-warnings", source.replace(".ts", ".js"), cwd=packed, seconds=20)


def test_the_blocks_of_five_minutes_run_as_printed_in_node_and_compile(shared: Service, packed: Path) -> None:
    found = [block for block in blocks("docs/start.md") if block.kind == "ts"]
    assert len(found) == 3
    for block in found:
        run_block(block, packed, {"127.0.0.1:4000": shared.url.removeprefix("http://")})
        (packed / f"block{block.line}.mts").write_text(block.text)
    sources = [f"block{block.line}.mts" for block in found]
    how = ["--strict", "--noEmit", "--target", "es2022", "--module", "nodenext", "--types", "node"]
    run(TOOLS / "tsc", *how, "--typeRoots", PACKAGE / "node_modules" / "@types", *sources, cwd=packed)


IN_A_PAGE = """(async () => {
    const {Topics} = await import("/index.js");
    const client = new Topics(URL_OF_SERVICE, {key: KEY});
    await client.configure("page-q", {type: "queue"});
    await client.publish("page", {n: 1});
    await client.publish("page-q", {n: 2});
    const found = [];
    for (const transport of ["events", "websocket"])
        for await (const item of client.tail("page", {transport})) { found.push(item.data.n); break; }
    const worker = client.worker("page-q", job => { found.push(job.data.n); worker.stop(); });
    await worker.run();
    return found;
})()"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Write nothing."""


def test_it_runs_in_a_page_of_another_origin(new_service: Callable[..., Service], tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    for file in (PACKAGE / "dist").glob("*.js"):
        shutil.copy(file, tmp_path / "pages")
    (tmp_path / "pages" / "index.html").write_text("<!doctype html><p id='state'>ready</p>")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path / "pages")) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        origin = f"http://127.0.0.1:{server.server_port}"
        service = new_service(TOPICS_API_KEYS=KEY, TOPICS_CORS_ORIGINS=origin).start()
        with opened(f"{origin}/", tmp_path / "profile") as page:
            script = IN_A_PAGE.replace("URL_OF_SERVICE", json.dumps(service.url)).replace("KEY", json.dumps(KEY))
            assert page.js(script) == [1, 1, 2]
        server.shutdown()


def kill(service: Service, name: str) -> None:
    """Kill a child; return when its successor serves."""
    before = service.kill_child(name)
    until(lambda: service.child(name)["incarnation"] > before and service.is_ready(), f"the next {name}")


@pytest.mark.parametrize("kills", [10, pytest.param(100, marks=pytest.mark.long)])
def test_kills_lose_and_double_nothing(new_service: Callable[..., Service], kills: int) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    rng = random.Random(seed)
    service = new_service(shards=2, TOPICS_RESTART_LIMIT="1000").start()  # by default it gives up after ten
    pipe: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([*NODE, "e2e/chaos.mjs", service.url], cwd=PACKAGE, text=True, **pipe) as chaos:
        assert chaos.stdout is not None
        try:
            for _ in range(kills):
                for _ in range(rng.randrange(1, 10)):
                    assert chaos.stdout.readline(), chaos.communicate()[1]
                kill(service, rng.choice(["gateway", "shard-00", "shard-01"]))
            _, errors = chaos.communicate("stop\n", timeout=60)
            assert chaos.returncode == 0, errors
        finally:
            chaos.kill()
