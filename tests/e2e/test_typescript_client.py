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
import typer

from supervisor.cli.endpoint import resolve
from tests.e2e.test_status_page import opened
from tests.support.context_files import ENVIRONMENTS, FILES, KEYS, PROD, all_kinds, contexts, written
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
    """The client, as ES modules and as CommonJS: compiled with --strict, and without the types of Node."""
    done = subprocess.run([ROOT / "tools" / "install-npm.sh"], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        leave_out(done.stderr.strip().rpartition("\n")[2])
    shutil.rmtree(PACKAGE / "dist", ignore_errors=True)
    run("npm", "run", "build")


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
    assert {"dist/cjs/package.json", "dist/cjs/index.js", "dist/cjs/index.d.ts"} <= files
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


USE = """
async function use(topic) {
  const client = new topics.Topics(process.env.TOPICS_URL);
  await client.publish(topic, { n: 1 });
  for await (const item of client.tail(topic)) {
    console.log(item.data.n, (await client.state(topic)).headSeq);
    break;
  }
  await client.state("missing").catch((error) => console.log(error instanceof topics.TopicNotFound));
}
"""
"""What a program does with the package."""
REQUIRE = 'const topics = require("topics-client");'
TYPES = """
const client = new Topics("http://127.0.0.1:4000", { token: "k" });
export async function use(): Promise<[number, Date, unknown]> {
  const { headSeq, config } = await client.state("t");
  const ttl: number = config.ttlMs;
  const [record] = [(await client.read("t", { decode: (data) => new Date(String(data)) }).next()).value];
  const day: Date = record?.kind === "record" ? record.data : new Date(ttl);
  const { jobs } = await client.peek("q");
  await client.configure("q", { maxDeliveries: 5 });
  await client.configure("q", { max_deliveries: 5 });
  // @ts-expect-error: answers have this client's names
  void (await client.state("t")).head_seq;
  // @ts-expect-error: there is no such option
  void new Topics("http://127.0.0.1:4000", { tokn: "k" });
  return [headSeq, day, jobs[0]?.data];
}
"""


def test_the_package_is_imported_and_required(shared: Service, packed: Path) -> None:
    for name, line in (("import.mjs", 'import * as topics from "topics-client";'), ("require.cjs", REQUIRE)):
        (packed / name).write_text(f'{line}\n{USE}use("{name}");')
        assert run("node", name, cwd=packed, TOPICS_URL=shared.url) == "1 1\ntrue\n"


@pytest.mark.parametrize("source", ["module.mts", "module.cts", "plain.ts"])
@pytest.mark.parametrize(
    "how", [("node16", "node16"), ("nodenext", "nodenext"), ("esnext", "bundler")], ids=lambda how: how[1]
)
def test_its_types_are_found_by_modules_of_both_kinds(packed: Path, source: str, how: tuple[str, str]) -> None:
    (packed / source).write_text('import { Topics } from "topics-client";\n' + TYPES)
    module, resolution = how
    options = ["--strict", "--noEmit", "--target", "es2022", "--lib", "es2022,dom", "--types", ""]
    run(TOOLS / "tsc", *options, "--module", module, "--moduleResolution", resolution, source, cwd=packed)


RESOLVE = """
import { readFileSync } from "node:fs";
import { resolve } from "PACKAGE/dist/endpoint.js";
for (const { environment, url, options } of JSON.parse(readFileSync(0, "utf8"))) {
  for (const name of Object.keys(process.env)) if (/^(TOPICS_|XDG_)/.test(name)) delete process.env[name];
  Object.assign(process.env, environment);
  try {
    const found = resolve(url ?? undefined, options);
    console.log(JSON.stringify([found.url, found.token ?? null]));
  } catch (error) {
    if (error.code !== "ENOENT" && error.code !== "EISDIR" && !(error instanceof TypeError)) throw error;
    console.log(JSON.stringify(String(error.message)));
  }
}
"""


def resolved(directory: Path, cases: list[tuple[Path, dict[str, str], dict[str, str]]]) -> list[Any]:
    """What the client finds with these homes, variables and options."""
    program = directory / "resolve.mjs"
    program.write_text(RESOLVE.replace("PACKAGE", str(PACKAGE)))
    told = [
        {"environment": {"XDG_CONFIG_HOME": str(home), **environment}, "options": options}
        for home, environment, options in cases
    ]
    done = subprocess.run(["node", program], input=json.dumps(told), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def by_command_line(environment: dict[str, str], home: Path, options: dict[str, str]) -> Any:
    found = {"XDG_CONFIG_HOME": str(home), **environment}
    try:
        endpoint = resolve(None, options.get("token"), options.get("context"), found, local=False)
    except typer.Exit:
        return "refused"
    return [endpoint.url, endpoint.token]


def test_it_finds_the_same_url_and_key_as_the_command_line(tmp_path: Path) -> None:
    cases: list[tuple[Path, dict[str, str], dict[str, str]]] = []
    for name in KEYS.keys() - {"keyring"}:
        all_kinds(tmp_path / name, name)
        for environment in ENVIRONMENTS:
            cases += [(tmp_path / name, environment, options) for options in ({}, {"token": "mine"})]
            if "TOPICS_URL" not in environment:
                cases.append((tmp_path / name, environment, {"context": name}))
                cases.append((tmp_path / name, {"TOPICS_CONTEXT": name, **environment}, {}))
    for kind, text in FILES.items():
        written(tmp_path / kind / "topics" / "contexts.json", text)
        cases.append((tmp_path / kind, {}, {"context": "here"}))
    for mode in (0o640, 0o604, 0o620):
        contexts(tmp_path / str(mode), "prod", prod={"url": PROD}).chmod(mode)
        cases.append((tmp_path / str(mode), {}, {}))
    found = resolved(tmp_path, cases)
    for (home, environment, options), ours in zip(cases, found, strict=True):
        theirs = by_command_line(environment, home, options)
        assert ("refused" if isinstance(ours, str) else ours) == theirs, (home.name, environment, options, ours)
    assert sum(isinstance(each, str) for each in found) > 20


def test_a_key_in_the_keyring_is_told_and_not_taken_for_none(tmp_path: Path) -> None:
    all_kinds(tmp_path, "keyring")
    assert "TOPICS_TOKEN" in resolved(tmp_path, [(tmp_path, {}, {})])[0]


@pytest.fixture(params=[False, True], ids=["without keys", "with keys"])
def asked(request: pytest.FixtureRequest, shared: Service, keyed: Service) -> tuple[Service, str]:
    """A service and its key, which is empty if it needs none."""
    return (keyed, KEY) if request.param else (shared, "")


PAGES = (PAGE, PACKAGE / "README.md")
CODE = [code for page in PAGES for code in re.findall(r"```ts\n(.*?)```", page.read_text(), re.DOTALL)]


def test_every_example_of_the_pages_runs_twice_as_printed(asked: tuple[Service, str], packed: Path) -> None:
    service, key = asked
    assert len(CODE) > 4
    for number, code in enumerate(CODE):
        (packed / f"example{number}.ts").write_text(code.replace("http://127.0.0.1:4000", service.url))
    sources = [f"example{number}.ts" for number in range(len(CODE))]
    how = ["--strict", "--target", "es2022", "--module", "nodenext", "--types", "node"]
    run(TOOLS / "tsc", *how, "--typeRoots", PACKAGE / "node_modules" / "@types", *sources, cwd=packed)
    environment = {"TOPICS_URL": service.url} | ({"TOPICS_TOKEN": key} if key else {})
    for source, code in zip(sources, CODE, strict=True):
        program = (*NODE, "--no-warnings", source.replace(".ts", ".js"))
        first, second = (run(*program, cwd=packed, seconds=20, **environment) for _ in range(2))
        if "cursor:" in code:
            assert first.count("\n") == second.count("\n") == 1
            assert first != second, "the second run begins after the item that the first one finished"


def test_the_blocks_of_five_minutes_run_as_printed_in_node_and_compile(
    asked: tuple[Service, str], packed: Path
) -> None:
    service, key = asked
    found = [block for block in blocks("docs/start.md") if block.kind == "ts"]
    assert len(found) == 3
    for block in found:
        run_block(block, packed, {"127.0.0.1:4000": service.url.removeprefix("http://")}, token=key)
        (packed / f"block{block.line}.mts").write_text(block.text)
    sources = [f"block{block.line}.mts" for block in found]
    how = ["--strict", "--noEmit", "--target", "es2022", "--module", "nodenext", "--types", "node"]
    run(TOOLS / "tsc", *how, "--typeRoots", PACKAGE / "node_modules" / "@types", *sources, cwd=packed)


IN_A_PAGE = """(async () => {
    const {Topics} = await import("/index.js");
    const client = new Topics(URL_OF_SERVICE, {token: KEY});
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
