"""The curl lines of README.md and of the pages it leads to work as printed, in their order."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.service import Service

ROOT = Path(__file__).parents[2]
PAGES = {"README.md": 5, "docs/quickstart.md": 16, "docs/api.md": 5}
"""Page → how many curl lines it has at least."""


def curl_lines(page: str) -> list[str]:
    blocks = re.findall(r"<!-- curl -->\n```sh\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_curl_lines_is_marked(page: str) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert sum(line.startswith("curl ") for block in blocks for line in block.splitlines()) == len(curl_lines(page))


def test_no_other_page_has_curl_lines_that_are_marked_and_not_run() -> None:
    marked = {path for path in (ROOT / "docs").rglob("*.md") if "<!-- curl -->" in path.read_text()}
    assert marked <= {ROOT / page for page in PAGES}


@pytest.mark.parametrize("page", PAGES)
def test_every_curl_line_succeeds(shared: Service, page: str) -> None:
    lines = curl_lines(page)
    assert len(lines) >= PAGES[page]
    for line in lines:
        assert line.startswith("curl ")
        command = line.replace("127.0.0.1:4000", f"127.0.0.1:{shared.port}") + " -sS -w '\\n%{http_code}'"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=30, check=True)
        body, _, status = done.stdout.rpartition("\n")
        assert status in ("200", "201"), f"{line}\n{body}"
        if "metrics" not in line:
            assert "error" not in json.loads(body)
