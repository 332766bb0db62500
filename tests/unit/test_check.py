"""tools/check.sh, tools/install-ops.sh and tools/pip-install.sh: what a machine lacks is installed where it may be,
else told."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
LACKS = 'printf "nginx\\nJava 17 or later\\nnginx\\n" >> "$TESTS_LEFT_OUT"'


def program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("CI", "TESTS_LEFT_OUT")}
    return subprocess.run(command, env=kept | environment, capture_output=True, text=True, check=False)


def checks(directory: Path, pytest_does: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`make check` with a Python whose pytest does only that."""
    program(directory / "bin/python", f'[ "$2" = pytest ] || exit 0\n{pytest_does}')
    return run(TOOLS / "check.sh", directory / "bin", "fast", **environment)


def test_what_was_left_out_is_one_line_at_the_end_and_no_failure(tmp_path: Path) -> None:
    done = checks(tmp_path, LACKS)
    assert done.returncode == 0
    assert done.stderr.startswith("!!!!! 3 tests are LEFT OUT. They need: Java 17 or later; nginx. ")
    assert done.stderr.count("\n") == 1


def test_ci_takes_it_for_a_failure(tmp_path: Path) -> None:
    done = checks(tmp_path, LACKS, CI="true")
    assert done.returncode == 1
    assert "3 tests are LEFT OUT, which CI takes for a failure." in done.stderr


@pytest.mark.parametrize("ci", [{}, {"CI": "true"}])
def test_with_everything_there_it_says_nothing_and_has_the_status_of_the_tests(
    tmp_path: Path, ci: dict[str, str]
) -> None:
    assert [checks(tmp_path, f"exit {status}", **ci).returncode for status in (0, 1, 5)] == [0, 1, 0]
    assert checks(tmp_path, "", **ci).stderr == ""


@pytest.mark.slow
def test_a_skipped_test_is_written_down_with_its_reason(tmp_path: Path) -> None:
    """By the process that reports, not by those that run tests."""
    (tmp_path / "test_it.py").write_text(
        "import pytest\nfrom tests.support.programs import tool\n"
        "def test_a(): tool('no-such-program', 'nor-this')\n"
        "@pytest.fixture(scope='module')\ndef lacks(): tool('no-such-program')\n"
        "def test_b(lacks): pass\ndef test_c(): pass\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        "/dev/null",
        "-p",
        "xdist",
        "-p",
        "tests.conftest",
        "--numprocesses=1",
        tmp_path,
    ]
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(TOOLS.parent)}
    run(*command, TESTS_LEFT_OUT=str(tmp_path / "left-out"), **environment)
    assert (tmp_path / "left-out").read_text() == "no-such-program\n" * 2


def installs(directory: Path, user: str, apt_get: str, **environment: str) -> tuple[int, str]:
    """Run tools/install-ops.sh on a machine with few programs. Return its status and what it says."""
    directory.mkdir()
    for name in ("sh", "dirname", "cut", "sort", "grep", "rm", "chmod", "cat", "cp"):
        (directory / name).symlink_to(shutil.which(name) or "")
    program(directory / "id", f"echo {user}")
    program(directory / "apt-get", apt_get)
    places = {"PATH": str(directory), "POLICY_RC_D": str(directory / "policy")}
    done = run(TOOLS / "install-ops.sh", "bench", **places, **environment)
    return done.returncode, done.stderr


@pytest.mark.parametrize("ci", [{}, {"CI": "true"}])
def test_root_installs_without_a_question_and_nothing_starts(tmp_path: Path, ci: dict[str, str]) -> None:
    machine = tmp_path / "machine"
    apt_get = f"""
        "{machine}/policy"; [ $? = 101 ] || exit 1
        [ -z "$(cat)" ] || exit 2
        for name; do :; done
        cp "{machine}/id" "{machine}/$name"
    """
    status, said = installs(machine, "0", apt_get, **ci)
    assert (status, said) == (0, "installing what the bench need: redis-server nats-server beanstalkd\n")
    assert not (machine / "policy").exists()


@pytest.mark.parametrize("ci", [{}, {"CI": "true"}])
def test_another_user_installs_nothing_and_is_told_what_is_lacking(tmp_path: Path, ci: dict[str, str]) -> None:
    machine = tmp_path / "machine"
    for name in ("sudo", "su", "doas", "pkexec"):
        program(tmp_path / name, f'touch "{tmp_path}/rights"')
    status, said = installs(machine, "1000", f'touch "{tmp_path}/called"', **ci)
    assert status == 1
    assert said.endswith("as root: apt-get install redis-server nats-server beanstalkd \n")
    assert not (tmp_path / "called").exists()


def test_without_a_network_it_says_so_and_goes_on(tmp_path: Path) -> None:
    status, said = installs(tmp_path / "machine", "0", "exit 100")
    assert status == 1
    assert "The lists of packages cannot be fetched: is there a network?" in said
    assert said.endswith("as root: apt-get install redis-server nats-server beanstalkd \n")


def test_pip_without_an_index_says_what_is_lacking(tmp_path: Path) -> None:
    program(tmp_path / "python", 'echo "$@"\nexit 1')
    done = run(TOOLS / "pip-install.sh", tmp_path / "python", "--editable", ".[dev,docs]")
    assert done.returncode == 1
    assert done.stdout.endswith("pip install --quiet --disable-pip-version-check --editable .[dev,docs]\n")
    assert done.stderr.startswith("The packages cannot be had.")
    assert re.search(r"^PIP := tools/pip-install.sh ", (TOOLS.parent / "Makefile").read_text(), re.MULTILINE)
