"""The states of a job: the table is what the docstring draws and what the job table of a queue does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardd.topic import job_states
from shardd.topic.job_states import DELAYS, GOING, LASTING, TIMED, TRANSITIONS, Event, State
from shardd.topic.job_table import Job, Queue
from tests.support.state_tables import drawn

NOW, LATER = 1_000, 2_000


def test_the_docstring_draws_the_table() -> None:
    assert drawn(job_states.__doc__, State, Event) == TRANSITIONS


def test_every_state_but_the_last_can_be_left_and_reached() -> None:
    assert set(TRANSITIONS) == set(State)
    assert set(State) - {after for row in TRANSITIONS.values() for after in row.values()} == {State.FRESH}
    assert {event for row in TRANSITIONS.values() for event in row} == set(Event)
    assert {state for state, row in TRANSITIONS.items() if Event.END in row} == set(TIMED) > set(DELAYS)
    assert set(LASTING) <= set(State)


class OneJob:
    """A job of a real queue."""

    def __init__(self, queue: Queue, seq: int = 1) -> None:
        self.queue = queue
        self.seq = seq

    @property
    def state(self) -> State:
        job = self.queue.jobs.get(self.seq)
        return State.FRESH if job is None else job.state

    def entry(self) -> Job:
        return self.queue.jobs[self.seq]

    def happens(self, event: Event) -> None:
        """Let the event happen to the job as the shard does. Raises `KeyError` if it cannot."""
        queue, seq = self.queue, self.seq
        doings: dict[Event, Callable[[], object]] = {
            Event.CLAIM: lambda: queue.lease([seq], "node", [seq], NOW, ""),
            Event.SCHEDULE: lambda: queue.schedule(seq, [NOW], 0),
            Event.END: self._end,
            Event.RELEASE: lambda: queue.release(seq, self.entry(), NOW, NOW),
            Event.POSTPONE: lambda: queue.release(seq, self.entry(), LATER, NOW),
            Event.ACK: lambda: queue.ack(seq, self.entry()),
            Event.ORDER: lambda: queue.order(seq),
            Event.CALL_BACK: lambda: queue.cancel_transfer(seq),
            Event.ARRIVE: lambda: queue.arrived(seq, self.entry()),
        }
        doings[event]()

    def _end(self) -> None:
        self.queue.expire(LATER)


def path_to(state: State) -> list[Event]:
    """The shortest series of events from FRESH to a state."""
    paths: dict[State, list[Event]] = {State.FRESH: []}
    while state not in paths:
        paths |= {
            after: [*path, event]
            for before, path in list(paths.items())
            for event, after in TRANSITIONS[before].items()
            if after not in paths
        }
    return paths[state]


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", State)
def test_the_job_table_goes_as_the_table_says(state: State, event: Event) -> None:
    job = OneJob(Queue())
    for each in path_to(state):
        job.happens(each)
    assert job.state is state
    after = TRANSITIONS[state].get(event)
    if after is not None:
        job.happens(event)
        assert job.state is after
    elif event in (Event.END, Event.CALL_BACK):
        job.happens(event)  # the queue looks for itself which jobs these concern
        assert job.state is state
    elif event is not Event.SCHEDULE:  # it is replayed over the rows of a catalog
        with pytest.raises(KeyError):
            job.happens(event)


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from(Event)), max_size=40))
def test_figures_and_rows_follow_the_states(steps: list[tuple[int, Event]]) -> None:
    queue = Queue()
    states = dict.fromkeys(range(1, 5), State.FRESH)
    for seq, event in steps:
        if event in TRANSITIONS[states[seq]]:
            due = [s for s, state in states.items() if state in TIMED] if event is Event.END else [seq]
            OneJob(queue, seq).happens(event)
            states |= {each: TRANSITIONS[states[each]][event] for each in due}
        assert states == {seq: OneJob(queue, seq).state for seq in states}
        each = list(states.values())
        assert queue.ready(len(states)) == each.count(State.FRESH) + each.count(State.READY)
        assert queue.in_flight == each.count(State.LEASED) + each.count(State.DELETING)
        assert queue.delayed == sum(map(each.count, DELAYS))
        assert queue.dead_lettering == each.count(State.TRANSFERRING) + each.count(State.ARRIVED)
        assert queue.ready(len(states)) + queue.in_flight + queue.delayed + queue.dead_lettering == len(states)
        first = min((seq for seq, state in states.items() if state is State.READY), default=None)
        assert queue.first_ready() == first
    back = Queue()
    back.apply(queue.dump(everything=True))
    again = dict.fromkeys(GOING, State.READY)  # the frame of its deletion may be lost
    assert {seq: OneJob(back, seq).state for seq in states} == {
        s: again.get(state, state) for s, state in states.items()
    }


def test_an_undone_change_leaves_the_state_before_it() -> None:
    for state in State:
        for event in TRANSITIONS[state]:
            job = OneJob(Queue())
            for each in path_to(state):
                job.happens(each)
            saved = None if state is State.FRESH else job.entry().saved()
            job.happens(event)
            job.queue.undo(job.seq, saved)
            assert job.state is state
