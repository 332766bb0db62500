"""The blocks of code in the pages: which there are, and how each is run.

A page's blocks of shell and Python are run in their order, as printed; only addresses and directories are those of the
test. A block of JSON is the answer to the block above it. A block that cannot be run has a mark with the reason above
it, `<!-- not run: … -->`. A block that does not end gets a Ctrl-C after what the mark above it says that it prints,
`<!-- goes on after: … -->`.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ELSEWHERE = {
    "docs/operations.md": "tests/e2e/test_operations.py",
    "docs/examples.md": "tests/e2e/test_examples_browser.py",
    "docs/howto/two-machines.md": "tests/e2e/test_two_machines_page.py",
    "docs/howto/several-machines.md": "tests/e2e/test_several_machines_page.py",
    "docs/lake.md": "tests/e2e/test_spark_lake.py",
}
"""Pages that need more than a service, and the tests that run their blocks."""
RUN = ("sh", "python")
COMPILED = {"ts": "tests/e2e/test_typescript_client.py"}
"""Kinds of blocks that are compiled first, and the tests that do it and run them."""
BLOCK_S = 300
"""A block that runs for longer is killed. Each line may start a Python, on a machine that is busy."""
CODE = (*RUN, "json", "bash", "shell", "console", "py", "js", "javascript", "ts", "typescript", "html")
_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<not_run>.+?) -->\n|^<!-- goes on after: (?P<goes_on>.+?) -->\n)?"
    r"^```(?P<kind>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_CURL = 'curl() { command curl -sS --fail-with-body "$@"; echo; }\n'


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    kind: str
    text: str
    not_run: str
    """Why the block is not run; empty for one that is."""
    goes_on: str = ""
    """What a block that does not end has printed when it is stopped; empty for one that ends."""

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
        Block(page, text.count("\n", 0, found.start()) + 1, **found.groupdict(default=""))
        for found in _BLOCK.finditer(text)
        if found["kind"] in CODE
    ]


def run(
    block: Block, directory: Path, addresses: Mapping[str, str], enter: Sequence[str] = (), *, token: str = ""
) -> str:
    """Run a block in a directory and return its output. `addresses` has those of the page and those to use instead.
    `enter` is a command that replaces itself with the command after it. A `token` is what a user of a service with keys
    has: a variable for the command line and the clients, and a line in the settings of curl."""
    text = block.text
    for printed, real in addresses.items():
        text = text.replace(printed, real)
    url = f"http://{addresses.get('127.0.0.1:4000', '')}"
    program = directory / f"block{block.line}.mjs"
    if block.kind == "ts":
        program.write_text(text)
    command = {
        "sh": ["bash", "-euo", "pipefail", "-c", _CURL + text],
        "python": [sys.executable, "-W", "error", "-u", "-c", text],
        "ts": ["node", str(program)],
    }[block.kind]
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT / "packages" / "topics-client"),
        "HOME": str(directory),
        "TOPICS_URL": url,
    }
    if token:
        environment["TOPICS_TOKEN"] = token
        (directory / ".curlrc").write_text(f'header = "Authorization: Bearer {token}"\n')
    pipe: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(
        [*enter, *command], cwd=directory, env=environment, text=True, process_group=0, **pipe
    ) as running:
        stop = threading.Timer(BLOCK_S, os.killpg, (running.pid, signal.SIGKILL))
        stop.start()
        assert running.stdout is not None
        printed = ""
        while block.goes_on and block.goes_on not in printed and (line := running.stdout.readline()):
            printed += line
        if block.goes_on:
            os.killpg(running.pid, signal.SIGINT)
        rest, errors = running.communicate()
        stop.cancel()
    allowed = (0, 130, -signal.SIGINT) if block.goes_on else (0,)
    assert running.returncode in allowed, f"{block} ended with {running.returncode}\n{printed}{rest}{errors}"
    assert block.goes_on in printed, f"{block}\n{printed}{errors}"
    assert block.kind != "python" or block.goes_on or not errors, f"{block}\n{errors}"
    return printed + rest
