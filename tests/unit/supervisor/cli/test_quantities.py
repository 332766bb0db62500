"""Numbers as people read them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli.quantities import counted, described, moment, size, span

ROOT = Path(__file__).parents[4]
NOUNS = "jobs records topics letters lines gaps attempts bytes parts segments frames queues streams requests writes"


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 jobs"), (1, "1 job"), (2, "2 jobs"), (1000, "1,000 jobs"), (2**64, f"{2**64:,} jobs")]
)
def test_a_number_comes_with_its_noun(number: int, text: str) -> None:
    assert counted(number, "job") == text


def test_no_command_writes_a_number_before_a_plural_by_itself() -> None:
    """`1 jobs` came from there."""
    by_itself = re.compile(r"\} (" + NOUNS.replace(" ", "|") + r")\b")
    paths = sorted((ROOT / "supervisor" / "cli").rglob("*.py"))
    assert [(path.name, found[0]) for path in paths for found in by_itself.finditer(path.read_text())] == []


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (1550, "1.6 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (5 * 10**9, "5.0 GB"),
        (2**64, "18.4 EB"),
        (10**22, "10,000.0 EB"),
    ],
)
def test_sizes_have_a_decimal_prefix(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (1, "1 ms"),
        (1500, "1,500 ms"),
        (30_000, "30 s"),
        (120_000, "2 min"),
        (90_000, "90 s"),
        (7 * 86_400_000, "7 d"),
        (2**63, f"{2**63:,} ms"),
    ],
)
def test_a_duration_is_exact_in_the_largest_unit_that_fits(ms: int, text: str) -> None:
    assert span(ms) == text


def test_a_time_beyond_the_calendar_stays_a_number() -> None:
    assert moment(2**63) == str(2**63)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.123", moment(1_700_000_000_123))


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("head_seq", 1_000_000, ("head_seq", "1000000")),
        ("count", 1_000_000, ("count", "1,000,000")),
        ("bytes", 1814, ("bytes", "1.8 kB")),
        ("cap_bytes", 0, ("cap_bytes", "none")),
        ("cap_bytes", 10**9, ("cap_bytes", "1.0 GB")),
        ("cap_records", 0, ("cap_records", "none")),
        ("ttl_ms", 0, ("ttl", "none")),
        ("ttl_ms", 3_600_000, ("ttl", "1 h")),
        ("claim_jitter_ms", 0, ("claim_jitter", "0 ms")),
        ("last_read_ts", None, ("last_read", "not since the shard started")),
        ("last_write_ts", None, ("last_write", "never")),
        ("dead_letter", None, ("dead_letter", "none")),
        ("priority", 5, ("priority", "5")),
        ("durable", True, ("durable", "true")),
        ("type", "queue", ("type", "queue")),
        ("of_a_later_release", {"a": [1]}, ("of_a_later_release", '{"a":[1]}')),
    ],
)
def test_a_field_of_a_topic_has_its_unit_beside_its_value(name: str, value: Any, shown: tuple[str, str]) -> None:
    assert described(name, value) == shown
