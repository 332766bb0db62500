"""`make mutants`: run each mutant against its bar. Ends with 1 if one of them is not found within a minute."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.history.bars import run
from tests.mutants.catalogue import MUTANTS, Mutant, made

WITHIN_S = 60.0
RUN_S, SCALE = 8.0, 0.1


def found(mutant: Mutant, directory: Path, within_s: float = WITHIN_S) -> str:
    """The violations of the first run that has any; empty if there is none in time."""
    source = made(mutant, directory / "source")
    ends, seed = time.monotonic() + within_s, 0
    while time.monotonic() < ends:
        seed += 1
        at = directory / f"run{seed}"
        at.mkdir()
        try:
            outcome = run(at, mutant.bar, RUN_S, seed, scale=SCALE, source=source)
        except AssertionError as error:
            return str(error).splitlines()[0]
        if outcome.report.counts:
            return ", ".join(f"{count} {kind}" for kind, count in outcome.report.counts.items())
        shutil.rmtree(at)
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("--only", default="", help="those whose names have this text")
    options = parser.parse_args()
    left = 0
    for mutant in MUTANTS:
        if options.only not in mutant.name:
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="topics-mutant-") as directory:
            told = found(mutant, Path(directory))
        left += not told
        print(f"{mutant.name}: bar {mutant.bar}, {time.monotonic() - began:.0f} s: {told or 'NOT FOUND'}", flush=True)
    return int(bool(left))


if __name__ == "__main__":
    sys.exit(main())
