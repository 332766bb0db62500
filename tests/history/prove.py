"""`make prove BAR=1 MINUTES=1 SEED=7`: run a bar, print figures and violations. Ends with 1 if there are any.
A long run is several, each with a service and a seed of its own, and with the command that repeats it.

Bars 3, 4 and 13 are counted: `make prove BAR=4 DRAWS=2000`. `ARGS="--only 17"` repeats one draw of bar 4. A run of
bar 13 also ends with 1 if it had too few faults, or checked too little, to prove anything.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from io import StringIO
from itertools import repeat
from multiprocessing import active_children, get_context
from pathlib import Path

import structlog

from tests.history import bars, clusters, damage
from tests.history.bar import Violation
from tests.support.service import ALIVE, end_in_order
from topics_history.__main__ import lines

CUTS_OF_A_SERVICE = 25
"""Power cuts before bar 3 begins with an empty data directory again."""
MINUTES_OF_A_SERVICE = {9: 3.0, 10: 10.0}
"""Bar 9 has a small volume, and the S3 server of bar 10 has everything in memory."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="prove", description=__doc__)
    parser.add_argument("--bar", type=int, choices=sorted((*bars.BARS, 4)), required=True)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--draws", type=int, default=100, help="power cuts, damages, schedules of bars 3, 4, 13")
    parser.add_argument("--only", type=int, help="of bar 4 only this draw")
    parser.add_argument("--seed", type=int, default=0, help="0: a random one")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--beside", type=int, default=1, help="schedules of bar 13 that run beside each other")
    options = parser.parse_args()
    end_in_order()
    options.seed = options.seed or random.SystemRandom().randrange(1, 1 << 32)
    if options.bar == 4:
        return _damage(options)
    if options.bar == 3:
        firsts = range(0, options.draws, CUTS_OF_A_SERVICE)
        return max(_service(options, options.seed + at, min(CUTS_OF_A_SERVICE, options.draws - at)) for at in firsts)
    if options.bar == 13:
        return _schedules(options)
    rounds = max(1, math.ceil(options.minutes / MINUTES_OF_A_SERVICE.get(options.bar, math.inf)))
    options.minutes /= rounds
    return max(_service(options, options.seed + number, 0) for number in range(rounds))


def _schedules(options: argparse.Namespace) -> int:
    counts: Counter[str] = Counter()
    began = time.monotonic()
    failed = 0
    with ProcessPoolExecutor(options.beside, get_context("spawn"), end_in_order) as processes:
        try:
            for found, counted, text in processes.map(
                _schedule, repeat(options), range(options.seed, options.seed + options.draws)
            ):
                print(text, end="", flush=True)
                failed += found
                counts += counted
        except (KeyboardInterrupt, SystemExit):
            for process in active_children():
                process.terminate()
            raise
    print(f"{options.draws} schedules in {time.monotonic() - began:.0f} s, {failed} found something")
    print(", ".join(f"{count} {what}" for what, count in counts.items()))
    missing = clusters.missing(counts, options.draws)
    print("".join(f"too little: {each}\n" for each in missing), end="")
    return int(failed > 0 or bool(missing))


def _schedule(options: argparse.Namespace, seed: int) -> tuple[int, Counter[str], str]:
    """What `_service` returns, counts and prints."""
    counts: Counter[str] = Counter()
    try:
        with redirect_stdout(StringIO()) as text:
            found = _service(options, seed, clusters.STEPS, counts)
    except (KeyboardInterrupt, SystemExit):
        os._exit(1)  # or else the pool gives this process its next schedule
    return found, counts, text.getvalue()


def _service(options: argparse.Namespace, seed: int, faults: int, counts: Counter[str] | None = None) -> int:
    """One run. Adds what it counted to `counts`."""
    directory = Path(tempfile.mkdtemp(prefix="topics-prove-"))
    lasts = f"DRAWS={1 if options.bar == 13 else faults}" if faults else f"MINUTES={options.minutes:g}"
    print(
        f'make prove BAR={options.bar} {lasts} SEED={seed} ARGS="--clients {options.clients}", in {directory}',
        flush=True,
    )
    try:
        outcome = bars.run(directory, options.bar, 60 * options.minutes, seed, clients=options.clients, faults=faults)
    except AssertionError as error:
        print(error if isinstance(error, Violation) else traceback.format_exc())
        _show_files(directory)
        return 1
    finally:
        for left in tuple(ALIVE):  # one that did not get ready
            left.close()
    report = outcome.report
    print("\n".join(lines(report)))
    print(f"{outcome.seconds:.0f} s; back within {outcome.longest_back_s:.1f} s; slowest {outcome.slowest_s:.1f} s")
    if outcome.figures:
        print(outcome.figures)
    if counts is not None:
        counts.update(outcome.counts)
    if report.counts or report.unread:
        _show_files(directory)
        return 1
    shutil.rmtree(directory)
    return 0


def _show_files(directory: Path) -> None:
    story = directory / "story.txt"
    if story.exists():
        print(story.read_text(), end="")
    print(f"the history is {directory / 'history.jsonl'}", flush=True)


def _damage(options: argparse.Namespace) -> int:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    only = "" if options.only is None else f' ARGS="--only {options.only}"'
    print(f"make prove BAR=4 DRAWS={options.draws} SEED={options.seed}{only}", flush=True)
    began = time.monotonic()
    figures = damage.run(options.draws, options.seed, options.only)
    for failure in figures.failures:
        print(failure)
    print("\n".join(f"{count:6} {what}" for what, count in sorted(figures.kinds.items())))
    print(figures, f"in {time.monotonic() - began:.0f} s")
    return int(bool(figures.failures))


if __name__ == "__main__":
    sys.exit(main())
