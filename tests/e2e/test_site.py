"""Claims about the documentation site: it builds without a warning, and its pages load nothing from elsewhere."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.contract.operations import OPERATIONS

ROOT = Path(__file__).parents[2]
_LOADED = re.compile(r"<(?:script|img|iframe|source|video|audio|object|embed)\b[^>]*\b(?:src|data)=\"?([^\s\">]+)")
_LINKED = re.compile(r"<link\b[^>]*\bhref=\"?([^\s\">]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(directory)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return directory


def test_every_page_is_built(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        built = site / page.relative_to(ROOT / "docs").with_suffix(".html")
        if page.name == "README.md":
            built = built.with_name("index.html")
        assert built.is_file(), page


@pytest.mark.parametrize(("word", "page"), [("authentication", "keys.html"), ("lease", "concepts/queues.html")])
def test_the_search_finds_what_users_look_for(site: Path, word: str, page: str) -> None:
    sections = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    found = {
        each["location"].partition("#")[0] for each in sections if word in f"{each['title']} {each['text']}".lower()
    }
    assert page in found


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    built = list(site.rglob("*.html"))
    assert len(built) > 60
    for page in built:
        text = page.read_text()
        loaded = [*_LOADED.findall(text), *_LINKED.findall(text)]
        assert loaded
        assert [each for each in loaded if "//" in each] == [], page
        # The theme's script would load something from elsewhere for these.
        assert 'class="mermaid"' not in text, page
        assert 'data-md-component="source"' not in text, page
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", style.read_text()), style


def test_the_reference_has_what_the_code_has(site: Path) -> None:
    http = (site / "reference" / "http.html").read_text()
    for operation in OPERATIONS:
        assert f"{operation.method} {operation.paths[0]}" in http
    assert "topics_wal_fsync_latency_us" in (site / "reference" / "metrics.html").read_text()
    assert "AsyncClient.tail" in (site / "reference" / "python.html").read_text()
