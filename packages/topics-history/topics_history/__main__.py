"""`python -m topics_history check FILE`: 0 no violation, 1 violations, 2 the file is no whole history."""

from __future__ import annotations

import sys
from pathlib import Path

from topics_history.checker import Report, check
from topics_history.format import HistoryError

USAGE = "usage: python -m topics_history check FILE"


def main(arguments: list[str]) -> int:
    if len(arguments) != 2 or arguments[0] != "check":
        print(USAGE, file=sys.stderr)
        return 2
    try:
        report = check(Path(arguments[1]))
    except (HistoryError, OSError) as error:
        print(f"{arguments[1]}: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines(report)))
    return 1 if report.counts else 0


def lines(report: Report) -> list[str]:
    """A line for each violation that is kept, then the figures."""
    outcomes = ", ".join(f"{count} {name}" for name, count in report.outcomes.items())
    total = sum(report.counts.values())
    kinds = ", ".join(f"{name} {count}" for name, count in sorted(report.counts.items()))
    unread = f"; not read in the end: {', '.join(report.unread)}" if report.unread else ""
    return [
        *map(str, report.violations),
        f"{report.operations} operations ({outcomes}), {report.faults} faults",
        f"{report.records} records acknowledged, {report.records_read} read{unread}",
        f"{total} violations" + (f": {kinds}" if kinds else ""),
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
