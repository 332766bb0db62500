"""`make mutants`: run each mutant against its bar, and each bar without one. Ends with 1 if a mutant is not found
within a minute, or if a bar finds something in the product as it is.

A mutant is found when a run breaks one of the promises that the catalogue names. A run that breaks another one, or that
ends with another error, tells nothing of the mutant: its bar may have failed, or the machine.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.history.bar import Violation
from tests.history.bars import CLIENTS, run
from tests.mutants.catalogue import MUTANTS, Mutant, made

WITHIN_S = 60.0
RUN_S, SCALE = 12.0, 0.1


@dataclass(slots=True)
class Hunt:
    """What runs of a bar have shown."""

    bar: int
    seed: int = 1
    """That of the first run. Each other one has the next."""
    clients: int = CLIENTS
    broken: Counter[str] = field(default_factory=Counter)
    """Violations by promise."""
    errors: list[str] = field(default_factory=list)
    """Of runs that ended without a verdict."""
    runs: int = 0

    def run(self, directory: Path, source: Path | None = None) -> None:
        """Run the bar once more. Its files stay, in a directory of their own."""
        seed = self.seed + self.runs
        self.runs += 1
        at = directory / f"run{self.runs}"
        at.mkdir()
        try:
            outcome = run(at, self.bar, RUN_S, seed, clients=self.clients, scale=SCALE, source=source)
            self.broken.update(outcome.report.counts)
        except Violation as violation:
            self.broken[violation.promise] += 1
        except Exception as error:
            self.errors.append(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")

    def __str__(self) -> str:
        broken = ", ".join(f"{count} {promise}" for promise, count in self.broken.items())
        errors = "".join(f"; a run ended with {each}" for each in self.errors)
        return f"{self.runs} runs, {broken or 'no violation'}{errors}"


def hunted(mutant: Mutant, directory: Path, within_s: float = WITHIN_S) -> tuple[bool, Hunt]:
    """Whether the mutant was found in time, and what its runs have shown."""
    source = made(mutant, directory / "source")
    hunt, found = Hunt(mutant.bar, mutant.seed, mutant.clients), False
    ends = time.monotonic() + within_s
    while not found and time.monotonic() < ends:
        hunt.run(directory, source)
        found = any(hunt.broken[promise] for promise in mutant.promises) and time.monotonic() < ends
    return found, hunt


def control(bar: int) -> bool:
    """Whether the bar finds nothing without a mutant. If it does, its files stay."""
    hunt, directory = Hunt(bar), Path(tempfile.mkdtemp(prefix="topics-control-"))
    began = time.monotonic()
    hunt.run(directory)
    print(f"bar {bar} without a mutant: {time.monotonic() - began:.0f} s, {hunt}", flush=True)
    if hunt.broken or hunt.errors:
        print(f"the history is {directory / 'run1/history.jsonl'}", flush=True)
        return False
    shutil.rmtree(directory)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("--only", default="", help="those whose names have this text")
    options = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if options.only in mutant.name]
    failed = not chosen
    for bar in sorted({mutant.bar for mutant in chosen}):
        failed |= not control(bar)
    for mutant in chosen:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="topics-mutant-") as directory:
            found, hunt = hunted(mutant, Path(directory))
        failed |= not found
        took = f"{time.monotonic() - began:.0f} s"
        print(f"{'found' if found else 'NOT FOUND'}: {mutant.name}: bar {mutant.bar}, {took}, {hunt}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
