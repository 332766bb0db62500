"""Claims about the parsers of Walrus and Rog on arbitrary bytes, and those that fuzzing found."""

from __future__ import annotations

import importlib.util
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS
from tests.support.programs import leave_out

ROOT = Path(__file__).parents[4]
CORPUS = ROOT / "tests" / "fuzz" / "corpus"


def frame(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<I", len(raw)) + raw


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name[:12]}")
def test_the_stored_corpus_is_taken(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=40), st.binary(max_size=40).map(frame)), max_size=5).map(b"".join))
def test_any_bytes_are_taken(data: bytes) -> None:
    for target in TARGETS.values():
        target(data)


@pytest.mark.long
@pytest.mark.parametrize("target", sorted(TARGETS))
def test_sixty_seconds_of_fuzzing_find_nothing(target: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        leave_out("atheris of the extra [fuzz]")
    found = tmp_path / "found"
    found.mkdir()
    seconds = os.environ.get("FUZZ_SECONDS", "60")
    command = [sys.executable, "-m", "tests.fuzz.run", target, f"-max_total_time={seconds}", "-max_len=4096"]
    command += [f"-artifact_prefix={tmp_path}/", str(found), str(CORPUS / target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    crashes = {path.name: path.read_bytes() for path in tmp_path.glob("crash-*")}
    assert done.returncode == 0, (crashes, done.stderr[-3000:])
    assert "stat::number_of_executed_units" in done.stderr or "DONE" in done.stderr or "Done" in done.stderr
