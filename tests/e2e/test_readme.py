"""Claims about the README: its curl lines work as printed, in their order."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from tests.support.service import Service

README = Path(__file__).parents[2] / "README.md"


def curl_lines() -> list[str]:
    blocks = re.findall(r"<!-- curl -->\n```sh\n(.*?)```", README.read_text(), re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


def test_every_block_of_curl_lines_is_marked() -> None:
    blocks = re.findall(r"```sh\n(.*?)```", README.read_text(), re.DOTALL)
    assert sum(line.startswith("curl ") for block in blocks for line in block.splitlines()) == len(curl_lines())


def test_every_curl_line_succeeds(shared: Service) -> None:
    lines = curl_lines()
    assert len(lines) >= 10
    for line in lines:
        assert line.startswith("curl ")
        command = line.replace("127.0.0.1:4000", f"127.0.0.1:{shared.port}") + " -sS -w '\\n%{http_code}'"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=30, check=True)
        body, _, status = done.stdout.rpartition("\n")
        assert status in ("200", "201"), f"{line}\n{body}"
        if "metrics" not in line:
            assert "error" not in json.loads(body)
