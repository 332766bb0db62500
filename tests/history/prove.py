"""`make prove BAR=1 MINUTES=1 SEED=7`: run a bar, print figures and violations. Ends with 1 if there are any."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tests.history.bars import BARS, run
from topics_history.__main__ import lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="prove", description=__doc__)
    parser.add_argument("--bar", type=int, choices=BARS, required=True)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0, help="0: a random one")
    parser.add_argument("--clients", type=int, default=16)
    options = parser.parse_args()
    seed = options.seed or random.SystemRandom().randrange(1, 1 << 32)
    directory = Path(tempfile.mkdtemp(prefix="topics-prove-"))
    print(f"bar {options.bar}, {options.minutes:g} minutes, seed {seed}, {options.clients} clients, in {directory}")
    outcome = run(directory, options.bar, 60 * options.minutes, seed, clients=options.clients)
    report = outcome.report
    print("\n".join(lines(report)))
    print(f"{outcome.seconds:.0f} s; back within {outcome.longest_back_s:.1f} s; slowest {outcome.slowest_s:.1f} s")
    if report.counts or report.unread:
        print(f"the history is {directory / 'history.jsonl'}")
        return 1
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
