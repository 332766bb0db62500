"""The table of commands: what is suggested, what is completed, and what is imported when."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from supervisor.cli.main import COMMANDS, MEANT, app, every, suggested

ROOT = Path(__file__).parents[4]
HEAVY = ("httpx", "rich.console", "pydantic", "trio", "asyncio.events", "structlog", "supervisor.config.settings")


def test_every_command_loads_and_begins_its_help_as_the_table_does() -> None:
    for name, command in every():
        assert COMMANDS[name].help.split()[0] == (command.help or "").split()[0], name


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


def imported(*arguments: str) -> set[str]:
    program = f"import sys; sys.argv = {['topics', *arguments]!r}\nfrom supervisor.cli.start import main\n"
    program += "try: main()\nexcept SystemExit: pass\nprint('\\n', *sys.modules, file=sys.stderr)"
    environment = {**os.environ, "TOPICS_URL": "http://127.0.0.1:1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=ROOT,
        env=environment,
    )
    return set(done.stderr.split())


def test_help_imports_no_command() -> None:
    found = imported("--help")
    assert "supervisor.cli.main" in found
    assert [name for name in found if name.startswith("supervisor.cli.commands.")] == []
    assert [name for name in HEAVY if name in found] == []


def test_a_command_that_asks_a_service_needs_neither_settings_nor_trio_nor_rich() -> None:
    found = imported("ls", "--patience", "0")
    assert {"httpx", "supervisor.cli.commands.topics"} <= found
    assert {"trio", "rich.console", "httpx._main", "supervisor.config.settings", "structlog"} & found == set()
