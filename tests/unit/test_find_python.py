"""tools/find-python.sh: which Python `make` takes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools/find-python.sh"


def take(directory: Path, **answers: str) -> subprocess.CompletedProcess[str]:
    """Run the tool where `python3_12="3.12 new makes plain"` is the only Python, and says that of itself."""
    for name, answer in answers.items():
        path = directory / name.replace("_", ".")
        path.write_text(f'#!/bin/sh\necho "{answer}"\n')
        path.chmod(0o755)
    candidates = " ".join(str(directory / name.replace("_", ".")) for name in answers)
    environment = os.environ | {"PYTHON": candidates}
    return subprocess.run([TOOL], env=environment, capture_output=True, text=True, check=False)


def test_one_with_optimisations_is_preferred_to_an_earlier_one_without(tmp_path: Path) -> None:
    done = take(tmp_path, python3_13="3.13 new makes plain", python3_11="3.11 new makes optimised")
    assert done.stdout == f"{tmp_path}/python3.11\n"
    assert "3.11, built with optimisations" in done.stderr


def test_the_first_is_taken_if_none_has_optimisations(tmp_path: Path) -> None:
    done = take(tmp_path, python3_13="3.13 new makes plain", python3_12="3.12 new makes plain")
    assert done.stdout == f"{tmp_path}/python3.13\n"
    assert "3.13, built without optimisations" in done.stderr


def test_one_that_is_old_or_makes_no_environment_is_named(tmp_path: Path) -> None:
    done = take(tmp_path, python3_9="3.9 old makes optimised", python3_12="3.12 new lacks optimised")
    assert (done.returncode, done.stdout) == (1, "")
    assert "python3.9 is 3.9;" in done.stderr
    assert "apt-get install python3.12-venv" in done.stderr


def test_a_real_python_answers() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON"}
    done = subprocess.run([TOOL], env=environment, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).exists()
    assert done.stderr.startswith("taking ")
