"""tools/make-venv.sh: the environment that `make` installs into is made, or used as it is, and never emptied."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def make(directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ROOT / "tools/make-venv.sh", directory], capture_output=True, text=True, check=False)


def environment(directory: Path, python: str = f'exec "{sys.executable}" "$@"') -> Path:
    """A directory that looks like an environment with this Python, which has pip."""
    (directory / "bin").mkdir(parents=True)
    (directory / "bin" / "python").write_text(f"#!/bin/sh\n{python}\n")
    (directory / "bin" / "python").chmod(0o755)
    return directory


def test_an_environment_that_is_there_is_used_and_keeps_its_files(tmp_path: Path) -> None:
    directory = environment(tmp_path / "venv")
    (directory / "mine").write_text("kept")
    done = make(directory)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"using {directory}, which is there\n", "")
    assert (directory / "mine").read_text() == "kept"


@pytest.mark.parametrize("python", ["exit 1", None])
def test_what_is_no_usable_environment_is_refused_and_kept(tmp_path: Path, python: str | None) -> None:
    directory = tmp_path / "venv"
    directory.mkdir() if python is None else environment(directory, python)
    (directory / "mine").write_text("kept")
    done = make(directory)
    assert done.returncode == 1
    assert "Remove it, or name another: make VENV=DIRECTORY" in done.stderr
    assert (directory / "mine").read_text() == "kept"


def test_the_makefile_makes_it_so_and_in_no_other_way() -> None:
    text = (ROOT / "Makefile").read_text()
    assert "tools/make-venv.sh $(VENV)" in text
    assert "--clear" not in text


def test_one_that_is_not_there_is_made(tmp_path: Path) -> None:
    """With a Python that only notes what it is asked to do."""
    python = tmp_path / "python3"
    python.write_text('#!/bin/sh\n[ "$1" = -c ] && echo "3.12 new makes optimised" || echo "$@"\n')
    python.chmod(0o755)
    command = ["env", f"PYTHON={python}", str(ROOT / "tools/make-venv.sh"), str(tmp_path / "venv")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"making {tmp_path}/venv with {python}\n-m venv {tmp_path}/venv\n"
