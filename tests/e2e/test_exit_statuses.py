"""Claims about exit statuses: the commands and their help agree with the table in the documentation."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from supervisor.backup.backup import backup
from supervisor.cli.main import COMMANDS, app, load
from supervisor.client import rog_client, walrus_client
from tests.support.service import Service
from topics_client import Client

ROOT = Path(__file__).parents[2]
ELSEWHERE = (
    {("serve", status) for status in range(4)}
    | {("export", 4), ("read", 4), ("tail", 4), ("doctor", 1)}
    | {("roll", 0), ("leave", 0)}
    | {
        ("takeover", 0),
        ("takeover", 1),
    }
)
"""Statuses that other tests check: those of the service with its ends, gaps in `test_transfer`, `test_cli`, that of
a roll in `test_gateways`, of a machine that leaves in `test_machines`, of takeovers in `test_roles`, and the last one
here."""
PROTOCOLS = {"walrus": walrus_client, "rog": rog_client}
NOWHERE = ["--url", "http://127.0.0.1:1", "--patience", "0"]
KEY = ["--url", "{url}", "--token", "s3cret"]
KEYLESS = ["--url", "{url}", "--token", "wrong"]

CASES: dict[tuple[str, int], list[str]] = {
    ("config", 0): [],
    ("version", 0): [],
    ("version", 2): ["--unknown"],
    ("status", 0): ["--url", "{url}", "--token", "s3cret"],
    ("status", 1): KEYLESS,
    ("status", 2): ["--interval", "soon"],
    ("status", 3): NOWHERE[:2],
    ("top", 0): ["--url", "{url}", "--token", "s3cret", "--interval", "0.1"],
    ("top", 1): KEYLESS,
    ("top", 2): ["--most", "0"],
    ("top", 3): NOWHERE[:2],
    ("verify", 0): ["--data-dir", "{stopped}"],
    ("verify", 1): ["--data-dir", "{none}"],
    ("reshard", 0): ["--data-dir", "{stopped}", "--shards", "1"],
    ("reshard", 1): ["--data-dir", "{none}", "--shards", "1"],
    ("reshard", 2): ["--shards", "0"],
    ("salvage", 0): ["a", "--data-dir", "{alone}"],
    ("salvage", 1): ["a", "--data-dir", "{none}"],
    ("deploy-files", 0): ["{tmp}/deploy"],
    ("deploy-files", 1): ["{lines}"],
    ("deploy-files", 2): [],
    ("backup", 0): ["{tmp}/backups", "--data-dir", "{stopped}"],
    ("backup", 1): ["{tmp}/backups", "--data-dir", "{none}"],
    ("restore", 0): ["{tmp}/backups", "{tmp}/restored"],
    ("restore", 1): ["{none}", "{tmp}/restored-2"],
    ("restore", 2): ["{tmp}/backups", "{tmp}/restored-2", "--until", "yesterday"],
    ("lake", 0): ["--to", "{tmp}/lake", "--path", "{stopped}", "--once"],
    ("lake", 1): ["--to", "{tmp}/lake-1", "--path", "{none}", "--once"],
    ("lake", 2): ["--once"],
    ("lake", 3): ["--to", "{tmp}/lake-3", "--url", "http://127.0.0.1:1", "--once"],
    ("replica", 0): ["verify", "{bucket}"],
    ("replica", 1): ["status", "file://{none}"],
    ("replica", 2): ["status"],
    ("takeover", 2): [],
    ("roll", 1): ["--data-dir", "{none}"],
    ("leave", 1): ["--data-dir", "{none}"],
    ("export", 0): ["here", "-o", "{tmp}/out", "--url", "{url}", "--token", "s3cret"],
    ("export", 1): ["nobody", "-o", "{tmp}/out", "--url", "{url}", "--token", "s3cret"],
    ("export", 2): [],
    ("export", 3): ["here", *NOWHERE],
    ("import", 0): ["{lines}", "--url", "{url}", "--token", "s3cret"],
    ("import", 1): ["{none}", "--url", "{url}", "--token", "s3cret"],
    ("import", 2): ["{lines}", "--raw"],
    ("import", 3): ["{lines}", *NOWHERE],
    ("publish", 0): ["there", "1", *KEY],
    ("publish", 1): ["there", "1", *KEYLESS],
    ("publish", 2): ["there", "{{"],
    ("publish", 3): ["there", "1", *NOWHERE],
    ("read", 0): ["here", *KEY],
    ("read", 1): ["nobody", *KEY],
    ("read", 2): ["here", "--commit"],
    ("read", 3): ["here", *NOWHERE],
    ("tail", 0): ["here", *KEY],
    ("tail", 1): ["nobody", *KEY],
    ("tail", 2): ["here", "--cursor", "c"],
    ("tail", 3): ["here", *NOWHERE],
    ("work", 0): ["jobs", "--exec", "true", "--drain", *KEY],
    ("work", 1): ["here", "--exec", "true", *KEY],
    ("work", 2): ["jobs"],
    ("work", 3): ["jobs", "--exec", "true", *NOWHERE],
    ("ls", 0): KEY,
    ("ls", 1): KEYLESS,
    ("ls", 2): ["--context", "unknown"],
    ("ls", 3): NOWHERE,
    ("show", 0): ["here", *KEY],
    ("show", 1): ["nobody", *KEY],
    ("show", 2): [],
    ("show", 3): ["here", *NOWHERE],
    ("create", 0): ["jobs", "--queue", *KEY],
    ("create", 1): ["here", "--queue", *KEY],
    ("create", 2): ["here", "--set", "priority"],
    ("create", 3): ["here", *NOWHERE],
    ("rm", 0): ["nobody", "--yes", *KEY],
    ("rm", 1): ["here", "--if-empty", *KEY],
    ("rm", 2): ["here"],
    ("rm", 3): ["here", "--yes", *NOWHERE],
    ("queues", 0): ["ls", *KEY],
    ("queues", 1): ["peek", "here", *KEY],
    ("queues", 2): ["peek"],
    ("queues", 3): ["ls", *NOWHERE],
    ("cursors", 0): ["set", "here", "me", "1", *KEY],
    ("cursors", 1): ["ls", "nobody", *KEY],
    ("cursors", 2): ["set", "here", "me", "first"],
    ("cursors", 3): ["ls", "here", *NOWHERE],
    ("routers", 0): ["add", "r", "here", "copy", *KEY],
    ("routers", 1): ["show", "nobody", *KEY],
    ("routers", 2): ["add", "r", "here"],
    ("routers", 3): ["ls", *NOWHERE],
    ("bench", 0): ["--seconds", "0.01", "--batch", "10", *KEY],
    ("bench", 1): KEYLESS,
    ("bench", 2): ["--size", "1"],
    ("bench", 3): NOWHERE,
    ("doctor", 0): ["--data-dir", "{tmp}/fresh"],
    ("doctor", 2): ["--unknown"],
    ("keys", 0): ["make"],
    ("keys", 1): ["list", "--file", "{none}"],
    ("keys", 2): ["rotate"],
    ("context", 0): ["ls"],
    ("context", 1): ["use", "unknown"],
    ("context", 2): ["add", "a", "no-url"],
    ("completion", 0): ["bash"],
    ("completion", 2): ["tcsh"],
}
WRONG_SETTINGS = ("config", "verify", "salvage", "backup", "roll", "leave")


def table() -> dict[str, set[int]]:
    """Command → statuses that the documentation gives it."""
    text = (ROOT / "docs" / "operations.md").read_text().partition("## Exit statuses")[2]
    rows = re.findall(r"^\| `([a-z-]+)` \|(.*)\|$", text, re.MULTILINE)
    return {name: {status for status, cell in enumerate(cells.split("|")) if cell.strip()} for name, cells in rows}


def commands() -> dict[str, str]:
    """Command → its help."""
    found = {name: load(name).help or "" for name in COMMANDS}
    return found | {name: module.__doc__ or "" for name, module in PROTOCOLS.items()}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    tmp = tmp_path_factory.mktemp("statuses")
    (tmp / "lines").write_text('{"topic":"here","data":1}\n')
    (tmp / "stopped").mkdir()
    (tmp / "bucket").mkdir()
    bucket = f"file://{tmp / 'bucket'}"
    with Service(tmp / "stopped", shards=1, TOPICS_BUCKET=bucket) as service:
        service.request("POST", "/v0/topics/a", {"records": [{"data": 1}]})
        service.stop()
        for _ in backup(service.data_dir, None, tmp / "backups"):
            pass
    shutil.copytree(tmp / "stopped" / "data", tmp / "alone")
    (tmp / "alone" / "shard-00" / "bucket.json").unlink()
    (tmp / "live").mkdir()
    with Service(tmp / "live", shards=1, TOPICS_API_KEYS="s3cret") as service, Client(service.url, "s3cret") as client:
        client.publish("here", 1)
        client.configure("jobs", type="queue")
        yield {
            "tmp": str(tmp),
            "bucket": bucket,
            "url": service.url,
            "stopped": str(tmp / "stopped" / "data"),
            "alone": str(tmp / "alone"),
            "none": str(tmp / "none"),
            "lines": str(tmp / "lines"),
        }


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in list(os.environ):
        if name.upper().startswith("TOPICS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TOPICS_PORT", "0")  # the default port may be in use


def test_the_table_has_every_command_and_says_what_its_help_says() -> None:
    assert set(table()) == set(commands())
    for name, text in commands().items():
        said = {int(number) for number in re.findall(r"\b\d\b", " ".join(text.split()).partition("Exit status:")[2])}
        assert said == table()[name], name


def test_every_status_in_the_table_is_tried() -> None:
    every = {(name, status) for name, statuses in table().items() for status in statuses if name not in PROTOCOLS}
    assert every == set(CASES) | ELSEWHERE | {(name, 2) for name in WRONG_SETTINGS}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def test_a_command_ends_as_the_table_says(case: tuple[str, int], places: dict[str, str]) -> None:
    name, status = case
    arguments = [argument.format(**places) for argument in CASES[case]]
    done = CliRunner().invoke(app, [name, *arguments])
    assert done.exit_code == status, done.output
    assert isinstance(done.exception, SystemExit | None)
    if status:
        assert done.stderr or "--json" in arguments or name == "status"


@pytest.mark.parametrize("name", WRONG_SETTINGS)
def test_wrong_settings_are_status_2(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_PORT", "http")
    done = CliRunner().invoke(app, [name, *([str(tmp_path)] if name in ("backup", "salvage") else [])])
    assert done.exit_code == 2
    assert "TOPICS_PORT" in done.stderr


def test_a_bar_is_for_terminals_and_leaves_the_output_alone(places: dict[str, str], tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "supervisor.cli", "backup", str(tmp_path), "--data-dir", places["stopped"]]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:
            pass  # the end of a terminal is an OSError
        assert process.stdout is not None
        output = process.stdout.read()
    os.close(ours)
    assert process.returncode == 0
    assert b"backing up" in shown
    assert re.fullmatch(rb"\S+Z: [\d,.]+ (bytes|kB|MB) copied, 0 bytes linked\n", output)


def test_the_shell_is_told_how_to_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"_TOPICS_COMPLETE": "complete_bash", "COMP_WORDS": "topics re", "COMP_CWORD": "1"}
    done = CliRunner().invoke(app, [], prog_name="topics", env=environment)
    assert done.stdout.split() == ["read", "replica", "reshard", "restore"]


def test_a_takeover_without_a_service_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_BUCKET", f"file://{tmp_path}")
    done = CliRunner().invoke(app, ["takeover", "--data-dir", str(tmp_path)])
    assert done.exit_code == 1
    assert "no service runs here" in done.stderr
