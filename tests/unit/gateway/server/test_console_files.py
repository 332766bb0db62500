"""Claims about the files of the console: what is sent, what a browser may keep, and what they may not contain."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from gateway.server.console_files import FOR_EVER, ConsoleFiles
from tests.support.gateway_stage import stage
from tests.support.programs import run, tool

ROOT = Path(__file__).parents[4]
CONSOLE = ROOT / "gateway" / "server" / "console"
OURS = sorted(path for path in CONSOLE.rglob("*.*") if "vendor" not in path.parts)
MOST_LINES = 3000
"""Of scripts and styles, without what is vendored: they stay readable in one sitting."""


def folder(tmp_path: Path, script: str = "import './a.js';") -> Path:
    (tmp_path / "views").mkdir(exist_ok=True)
    (tmp_path / "index.html").write_text("<script src='{{files}}/main.js'></script>")
    (tmp_path / "main.js").write_text(script)
    (tmp_path / "views" / "a.js").write_text("// " + "a" * 2000)
    return tmp_path


def test_the_document_names_the_digest_of_its_files_and_each_is_found_below_it(tmp_path: Path) -> None:
    files = ConsoleFiles(folder(tmp_path))
    assert f"/console/{files.digest}/main.js".encode() in files.document.content
    found = files.find(files.digest, "views/a.js")
    assert found is not None
    assert (found.type, found.cache_control) == ("text/javascript; charset=utf-8", FOR_EVER)
    assert gzip.decompress(found.packed) == found.content


def test_another_release_has_another_digest_and_files_of_two_are_never_mixed(tmp_path: Path) -> None:
    before = ConsoleFiles(folder(tmp_path))
    after = ConsoleFiles(folder(tmp_path, "import './b.js';"))
    assert before.digest != after.digest
    assert after.find(before.digest, "main.js") is None
    assert after.document.tag != before.document.tag


@pytest.mark.parametrize("name", ["index.html", "../status_page.html", "views", "views/", "", "/etc/passwd"])
def test_nothing_else_is_found(name: str) -> None:
    files = ConsoleFiles()
    assert files.find(files.digest, name) is None


async def test_the_console_is_served_with_its_policy_compressed_and_only_when_it_changed() -> None:
    async with stage() as there:
        await there.gateway.handover.prepare()
        async with there.client() as client:
            page = await client.ask("GET", "/console")
        policy = page.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "connect-src 'self'" in policy
        assert page.headers["cache-control"] == "no-cache"
        address = re.search(r'src="(/console/[^"]+/main\.js)"', page.raw.decode())
        assert address is not None
        async with there.client() as client:
            known = await client.ask("GET", "/console", headers={"If-None-Match": page.headers["etag"]})
        assert (known.status, known.raw) == (304, b"")
        async with there.client() as client:
            script = await client.ask("GET", address[1], headers={"Accept-Encoding": "gzip"})
        assert script.headers["cache-control"] == FOR_EVER
        assert script.headers["content-encoding"] == "gzip"
        assert gzip.decompress(script.raw) == (CONSOLE / "main.js").read_bytes()
        async with there.client() as client:
            plain = await client.ask("GET", address[1])
        assert plain.raw == (CONSOLE / "main.js").read_bytes()
        async with there.client() as client:
            other = await client.ask("GET", "/console/0000000000000000/main.js")
        assert (other.status, other.code) == (404, "not_found")


@pytest.mark.parametrize("path", OURS, ids=lambda path: str(path.relative_to(CONSOLE)))
def test_no_file_asks_another_host_or_evades_the_policy(path: Path) -> None:
    text = path.read_text()
    hosts = set(re.findall(r"\b(?:https?|wss?)://[^\s\"'`]+", text)) - {"http://www.w3.org/2000/svg"}
    assert not hosts
    for way in ("innerHTML", "unsafeHTML", "eval(", "new Function", "sessionStorage", "document.cookie", " style="):
        assert way not in text


def test_only_the_theme_is_ever_stored() -> None:
    stored = [found for path in OURS for found in re.findall(r"localStorage\.\w+\(\"?(\w+)", path.read_text())]
    assert set(stored) == {"theme"}


def test_the_console_stays_small() -> None:
    lines = sum(len(path.read_text().splitlines()) for path in OURS if path.suffix in (".js", ".css"))
    assert lines <= MOST_LINES


def test_what_is_vendored_has_its_licence() -> None:
    for script in (CONSOLE / "vendor").glob("*.js"):
        assert script.with_suffix(".LICENSE.txt").is_file()


def test_the_modules_without_a_document_do_what_their_tests_claim() -> None:
    run(tool("node"), "--test", str(ROOT / "tests" / "console"))
