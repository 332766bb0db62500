"""The table of commands: what is suggested, what is completed, and what is imported when."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from supervisor.cli.main import COMMANDS, MEANT, app, load, suggested

ROOT = Path(__file__).parents[3]
HEAVY = ("httpx", "httpcore", "asyncio.events")
NEVER = ("pydantic", "rich", "trio", "click", "h2", "httpx._main", "structlog", "supervisor.config.settings")
"""What commands that ask a service can do without."""


def test_every_command_loads_and_begins_its_help_as_the_table_does() -> None:
    for name, entry in COMMANDS.items():
        assert entry.help.split()[0] == (load(name).help or "").split()[0], name


@pytest.mark.parametrize(
    ("word", "command"),
    [
        ("raed", "read"),
        ("publsh", "publish"),
        ("tial", "tail"),
        ("reshad", "reshard"),
        ("get", "read"),
        ("SUBSCRIBE", "tail"),
        ("delete", "rm"),
        ("describe", "show"),
        ("zebra", None),
    ],
)
def test_what_was_meant_is_suggested(word: str, command: str | None) -> None:
    assert suggested(word) == command


def test_words_of_other_systems_lead_to_commands_and_are_none() -> None:
    assert set(MEANT.values()) <= COMMANDS.keys()
    assert not set(MEANT) & COMMANDS.keys()


def test_a_wrong_command_is_one_sentence_with_what_was_meant() -> None:
    done = CliRunner().invoke(app, ["red"])
    assert done.exit_code == 2
    assert "There is no command 'red'. Did you mean 'read'?" in done.stderr
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("topics re", {"read", "replica", "reshard", "restore"}),
        ("topics queues ", {"ls", "peek", "redrive"}),
        ("topics publish --te", {"--text"}),
        ("topics completion ", {"bash", "zsh", "fish"}),
    ],
)
@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_commands_options_and_choices_are_completed(words: str, found: set[str], shell: str) -> None:
    environment = {"_TOPICS_COMPLETE": f"complete_{shell}"}
    if shell == "bash":
        environment |= {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    else:
        environment |= {"_TYPER_COMPLETE_ARGS": words, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = CliRunner().invoke(app, [], prog_name="topics", env=environment)
    assert {line.split("\t")[0] for line in done.stdout.split("\n") if line} == found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_of_completion_calls_the_command(shell: str) -> None:
    done = CliRunner().invoke(app, ["completion", shell])
    assert done.exit_code == 0
    assert f"complete_{shell}" in done.stdout
    assert "_TOPICS_COMPLETE" in done.stdout


def imported(*arguments: str, **variables: str) -> set[str]:
    """The modules that a command has imported at its end. No service answers it."""
    program = f"import sys; sys.argv = {['topics', *arguments]!r}\nfrom topics_server import main\n"
    program += "try: main()\nexcept SystemExit: pass\nprint('\\n', *sys.modules, file=sys.stderr)"
    given = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=ROOT,
        env={**given, "TOPICS_URL": "http://127.0.0.1:1", **variables},
    )
    return set(done.stderr.rpartition("\n ")[2].split())


def test_help_imports_no_command() -> None:
    found = imported("--help")
    assert "supervisor.cli.main" in found
    assert [name for name in found if name.startswith("supervisor.cli.commands.")] == []
    assert [name for name in (*HEAVY, *NEVER) if name in found] == []
    assert "importlib.metadata" not in found


@pytest.mark.parametrize(
    ("words", "own"),
    [
        (("ls",), {"topics"}),
        (("show", "t"), {"topics"}),
        (("publish", "t", "1", "--tag", "a", "--batch-records", "7"), {"publish"}),
        (("read", "t", "-n", "3", "--wait", "2s"), {"read", "reading"}),
        (("tail", "t"), {"read", "reading"}),
        (("queues", "ls"), {"queues", "topics"}),
        (("queues", "peek", "q", "-n", "3"), {"queues", "topics"}),
        (("work", "q", "--exec", "true", "-c", "2"), {"work"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_command_that_asks_a_service_imports_its_own_module_and_nothing_just_in_case(
    words: tuple[str, ...], own: set[str]
) -> None:
    found = imported(*words, "--patience", "0")
    prefix = "supervisor.cli.commands."
    assert {name.removeprefix(prefix) for name in found if name.startswith(prefix)} == own
    assert "httpx" in found
    assert [name for name in NEVER if name in found] == []


def test_a_service_of_this_machine_is_found_without_the_settings(tmp_path: Path) -> None:
    found = imported("ls", "--patience", "0", TOPICS_URL="", TOPICS_DATA_DIR=str(tmp_path))
    assert "supervisor.process.rundir" in found
    assert [name for name in NEVER if name in found] == []


@pytest.mark.parametrize("words", ["topics re", "topics publish --te", "topics ls "])
def test_a_completion_imports_no_pydantic_and_no_rich(words: str) -> None:
    asked = {"_TOPICS_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    found = imported(**asked)
    assert "typer" in found
    assert [name for name in NEVER if name in found] == []


def test_only_one_module_of_the_supervisor_imports_the_client() -> None:
    """Any other could be the first, and would load all that httpx and httpcore import just in case."""
    importing = re.compile(r"^\s*(?:from|import) topics_client\b", re.MULTILINE)
    users = [path for path in (ROOT / "supervisor").rglob("*.py") if importing.search(path.read_text())]
    assert [path.relative_to(ROOT).as_posix() for path in users] == ["supervisor/client/python_client.py"]
