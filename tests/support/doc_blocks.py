"""The blocks of code in the pages: which there are, and how each is run.

A page's blocks of shell and Python are run in their order, as printed; only addresses and directories are those of the
test. A block of JSON is the answer to the block above it. A block that cannot be run has a mark with the reason above
it, `<!-- not run: … -->`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
ELSEWHERE = {
    "docs/operations.md": "tests/e2e/test_operations.py",
    "docs/examples.md": "tests/e2e/test_examples_browser.py",
    "docs/howto/two-machines.md": "tests/e2e/test_two_machines_page.py",
}
"""Pages that need more than a service, and the tests that run their blocks."""
RUN = ("sh", "python")
COMPILED = {"ts": "tests/e2e/test_typescript_client.py"}
"""Kinds of blocks that are compiled first, and the tests that do it and run them."""
CODE = (*RUN, "json", "bash", "shell", "console", "py", "js", "javascript", "ts", "typescript", "html")
_BLOCK = re.compile(r"(?:^<!-- not run: (.+?) -->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CURL = 'curl() { command curl -sS --fail-with-body "$@"; echo; }\n'


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    kind: str
    text: str
    not_run: str
    """Why the block is not run; empty for one that is."""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    return [
        str(path.relative_to(ROOT))
        for path in sorted(
            [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "packages").glob("topics-client/*.md")]
        )
    ]


def blocks(page: str) -> list[Block]:
    """The blocks of code of a page, in order."""
    text = (ROOT / page).read_text()
    return [
        Block(page, text.count("\n", 0, found.start()) + 1, found[2], found[3], found[1] or "")
        for found in _BLOCK.finditer(text)
        if found[2] in CODE
    ]


def run(block: Block, directory: Path, addresses: Mapping[str, str], enter: Sequence[str] = ()) -> str:
    """Run a block in a directory and return its output. `addresses` has those of the page and those to use instead.
    `enter` is a command that replaces itself with the command after it."""
    text = block.text
    for printed, real in addresses.items():
        text = text.replace(printed, real)
    command = ["bash", "-euo", "pipefail", "-c", _CURL + text]
    if block.kind == "python":
        command = [sys.executable, "-W", "error", "-c", text]
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT / "packages" / "topics-client"),
        "HOME": str(directory),
        "TOPICS_URL": f"http://{addresses.get('127.0.0.1:4000', '')}",
    }
    done = subprocess.run(
        [*enter, *command], cwd=directory, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{block} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    assert block.kind != "python" or not done.stderr, f"{block}\n{done.stderr}"
    return done.stdout
