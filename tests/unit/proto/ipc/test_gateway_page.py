"""The page: bounds hold over processes, and what a dead gateway leaves behind goes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.admission.slots import Bound, SharedSlots
from proto.ipc import gateway_page
from proto.ipc.gateway_page import Column, Page, Row, column_of
from proto.model.errors import TopicsError
from tests.support.gateway_stage import key

TAKES, MANY_TAKES = 30_000, 1_000_000
"""Of each of three processes."""


@pytest.fixture
def page() -> Iterator[Page]:
    made = Page(3)
    yield made
    made.close()


def rows(page: Page) -> list[Row]:
    return [Row(page.descriptor, 3, index) for index in range(3)]


def streams(row: Row, total: int, per_key: int = 0) -> SharedSlots:
    bounds = Bound("all", total), Bound("each", per_key)
    return SharedSlots(*bounds, lambda: False, row, Column.STREAMS, Column.KEY_STREAMS)


def test_a_cell_is_seen_by_all_and_summed() -> None:
    page = Page(3)
    for number, row in enumerate(rows(page), 1):
        row.put(Column.STREAMS, number)
    assert [row.sum(Column.STREAMS) for row in rows(page)] == [6, 6, 6]
    assert rows(page)[0].sum(Column.UNPROVEN) == 0
    page.close()


def test_a_total_holds_over_all_gateways(page: Page) -> None:
    slots = [streams(row, 2) for row in rows(page)]
    held = [slots[0].take(key("one")), slots[1].take(key("one"))]
    for each in slots:
        with pytest.raises(TopicsError) as refused:
            each.take(key("two"))
        assert refused.value.detail == {"limit": "all", "max": 2}
        assert sum(one.open for one in slots) == 2, "a refused take leaves nothing behind"
    held.pop().release()
    slots[2].take(key("two"))


def test_the_bound_of_a_key_holds_over_all_gateways_and_only_for_it(page: Page) -> None:
    digests = [key(name).digest for name in ("one", "two")]
    slots = []
    for row in rows(page):
        row.know(digests, page.places(digests))
        slots.append(streams(row, 0, 2))
    held = [slots[0].take(key("one")), slots[1].take(key("one"))]
    with pytest.raises(TopicsError) as refused:
        slots[2].take(key("one"))
    assert refused.value.detail == {"limit": "each", "max": 2}
    slots[2].take(key("two"))
    held[0].release()
    slots[2].take(key("one"))


def test_a_key_without_a_place_gets_an_equal_part_at_each_gateway(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_page, "MOST_KEYS", 1)
    digests = [key(name).digest for name in ("one", "two")]
    assert page.places(digests) == [0, -1]
    assert page.places(digests) == [0, -1], "a place is given once"
    row = rows(page)[0]
    row.know(digests, page.places(digests))
    slots = streams(row, 0, 4)
    held = [slots.take(key("two")) for _ in range(2)]
    with pytest.raises(TopicsError):
        slots.take(key("two"))
    held.pop().release()
    slots.take(key("two"))
    unbound = streams(row, 0)
    for _ in range(9):
        unbound.take(key("two"))


def test_the_end_of_a_removed_key_is_counted(page: Page) -> None:
    row = rows(page)[0]
    digests = [key("one").digest]
    row.know(digests, page.places(digests))
    slot = streams(row, 0, 1).take(key("one"))
    row.know([], [])
    slot.release()
    assert row.sum(column_of(Column.KEY_STREAMS, 0)) == 0


def test_only_the_row_of_a_dead_gateway_is_cleared(page: Page) -> None:
    digests = [key("one").digest]
    there = rows(page)
    for row in there:
        row.know(digests, page.places(digests))
        streams(row, 9).take(key("one"))
        row.put(Column.ACCEPTING, 1)
    page.clear(1)
    for column in (Column.STREAMS, Column.ACCEPTING, column_of(Column.KEY_STREAMS, 0)):
        assert there[0].sum(column) == 2
    assert there[0].sum(Column.HTTP) == 0


def test_the_least_busy_is_one_that_accepts(page: Page) -> None:
    there = rows(page)
    assert there[0].least(Column.HTTP) == 0
    for count, row in enumerate(there, 3):
        row.put(Column.ACCEPTING, 1)
        row.put(Column.HTTP, count)
    assert there[2].least(Column.HTTP) == 3
    there[0].put(Column.ACCEPTING, 0)
    assert there[2].least(Column.HTTP) == 4


PROCESS = """
import fcntl, os, sys
from gateway.admission.slots import Bound, SharedSlots
from proto.ipc.gateway_page import Column, Row
from proto.model.errors import TopicsError
from proto.model.keys import Key

index, descriptor, takes, *witnesses = map(int, sys.argv[1:])
slots = SharedSlots(
    Bound("all", len(witnesses)), Bound("", 0), lambda: False, Row(descriptor, 3, index), Column.STREAMS, None
)
taken = 0


def witness():
    for each in witnesses:
        try:
            fcntl.lockf(each, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return each
        except OSError:
            continue
    sys.exit("more slots are held than there may be")


for _ in range(takes):
    try:
        slot = slots.take(Key(b""))
    except TopicsError:
        continue
    taken += 1
    locked = witness()
    fcntl.lockf(locked, fcntl.LOCK_UN)
    slot.release()
print(taken)
"""


@pytest.mark.parametrize(
    ("most", "takes"), [(1, TAKES), (2, TAKES), pytest.param(2, MANY_TAKES, marks=pytest.mark.long)]
)
def test_three_processes_that_take_and_release_are_never_above_the_bound(
    page: Page, tmp_path: Path, most: int, takes: int
) -> None:
    """A lock on a file stands for each slot, so each process that holds a slot finds one free."""
    files = [os.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT) for number in range(most)]
    numbers = [str(each) for each in (page.descriptor, takes, *files)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(index), *numbers],
            pass_fds=(page.descriptor, *files),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(3)
    ]
    ended = [process.communicate(timeout=600) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], ended
    assert all(int(out) > 0 for out, _ in ended)
    assert rows(page)[0].sum(Column.STREAMS) == 0
    for each in files:
        os.close(each)


def test_what_a_killed_process_held_is_free_once_its_row_is_cleared(page: Page) -> None:
    holder = """
import sys, time
from gateway.admission.slots import Bound, SharedSlots
from proto.ipc.gateway_page import Column, Row
from proto.model.keys import Key
row = Row(int(sys.argv[1]), 3, 1)
slot = SharedSlots(Bound("all", 1), Bound("", 0), lambda: False, row, Column.STREAMS, None).take(Key(b""))
print("taken", flush=True)
time.sleep(600)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", holder, str(page.descriptor)], pass_fds=(page.descriptor,), stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"taken\n"
    other = streams(rows(page)[0], 1)
    with pytest.raises(TopicsError):
        other.take(key("one"))
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with pytest.raises(TopicsError):
        other.take(key("one"))
    page.clear(1)
    other.take(key("one"))
