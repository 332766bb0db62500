"""The states of a job: the table is what the docstring draws and what the job table of a queue does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardd.topic import job_states
from shardd.topic.job_states import DELAYS, FOLLOWING, GOING, LASTING, TIMED, JobEvent, JobState
from shardd.topic.job_table import Job, Queue
from tests.support.state_tables import by_state, drawn

NOW, LATER = 1_000, 2_000
TRANSITIONS = by_state(FOLLOWING, JobState)


def test_the_docstring_draws_the_table() -> None:
    assert drawn(job_states.__doc__, JobState, JobEvent) == TRANSITIONS


def test_every_state_but_the_last_can_be_left_and_reached() -> None:
    assert set(TRANSITIONS) == set(JobState)
    assert set(JobState) - {after for row in TRANSITIONS.values() for after in row.values()} == {JobState.FRESH}
    assert {event for row in TRANSITIONS.values() for event in row} == set(JobEvent)
    assert {state for state, row in TRANSITIONS.items() if JobEvent.END in row} == set(TIMED) > set(DELAYS)
    assert set(LASTING) <= set(JobState)


class OneJob:
    """A job of a real queue."""

    def __init__(self, queue: Queue, seq: int = 1) -> None:
        self.queue = queue
        self.seq = seq

    @property
    def state(self) -> JobState:
        job = self.queue.jobs.get(self.seq)
        return JobState.FRESH if job is None else job.state

    def entry(self) -> Job:
        return self.queue.jobs[self.seq]

    def happens(self, event: JobEvent) -> None:
        """Let the event happen to the job as the shard does. Raises `KeyError` if it cannot."""
        queue, seq = self.queue, self.seq
        doings: dict[JobEvent, Callable[[], object]] = {
            JobEvent.CLAIM: lambda: queue.lease([seq], "node", [seq], NOW, ""),
            JobEvent.SCHEDULE: lambda: queue.schedule(seq, [NOW], 0),
            JobEvent.END: self._end,
            JobEvent.RELEASE: lambda: queue.release(seq, self.entry(), NOW, NOW),
            JobEvent.POSTPONE: lambda: queue.release(seq, self.entry(), LATER, NOW),
            JobEvent.ACK: lambda: queue.ack(seq, self.entry()),
            JobEvent.ORDER: lambda: queue.order(seq),
            JobEvent.CALL_BACK: lambda: queue.cancel_transfer(seq),
            JobEvent.ARRIVE: lambda: queue.arrived(seq, self.entry()),
        }
        doings[event]()

    def _end(self) -> None:
        self.queue.expire(LATER)


def path_to(state: JobState) -> list[JobEvent]:
    """The shortest series of events from FRESH to a state."""
    paths: dict[JobState, list[JobEvent]] = {JobState.FRESH: []}
    while state not in paths:
        paths |= {
            after: [*path, event]
            for before, path in list(paths.items())
            for event, after in TRANSITIONS[before].items()
            if after not in paths
        }
    return paths[state]


@pytest.mark.parametrize("event", JobEvent)
@pytest.mark.parametrize("state", JobState)
def test_the_job_table_goes_as_the_table_says(state: JobState, event: JobEvent) -> None:
    job = OneJob(Queue())
    for each in path_to(state):
        job.happens(each)
    assert job.state is state
    after = TRANSITIONS[state].get(event)
    if after is not None:
        job.happens(event)
        assert job.state is after
    elif event in (JobEvent.END, JobEvent.CALL_BACK):
        job.happens(event)  # the queue looks for itself which jobs these concern
        assert job.state is state
    elif event is not JobEvent.SCHEDULE:  # it is replayed over the rows of a catalog
        with pytest.raises(KeyError):
            job.happens(event)


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from(JobEvent)), max_size=40))
def test_figures_and_rows_follow_the_states(steps: list[tuple[int, JobEvent]]) -> None:
    queue = Queue()
    states = dict.fromkeys(range(1, 5), JobState.FRESH)
    for seq, event in steps:
        if event in TRANSITIONS[states[seq]]:
            due = [s for s, state in states.items() if state in TIMED] if event is JobEvent.END else [seq]
            OneJob(queue, seq).happens(event)
            states |= {each: TRANSITIONS[states[each]][event] for each in due}
        assert states == {seq: OneJob(queue, seq).state for seq in states}
        each = list(states.values())
        assert queue.ready(len(states)) == each.count(JobState.FRESH) + each.count(JobState.READY)
        assert queue.in_flight == each.count(JobState.LEASED) + each.count(JobState.DELETING)
        assert queue.delayed == sum(map(each.count, DELAYS))
        assert queue.dead_lettering == each.count(JobState.TRANSFERRING) + each.count(JobState.ARRIVED)
        assert queue.ready(len(states)) + queue.in_flight + queue.delayed + queue.dead_lettering == len(states)
        first = min((seq for seq, state in states.items() if state is JobState.READY), default=None)
        assert queue.first_ready() == first
    back = Queue()
    back.apply(queue.dump(everything=True))
    again = dict.fromkeys(GOING, JobState.READY)  # the frame of its deletion may be lost
    assert {seq: OneJob(back, seq).state for seq in states} == {
        s: again.get(state, state) for s, state in states.items()
    }


def test_an_undone_change_leaves_the_state_before_it() -> None:
    for state in JobState:
        for event in TRANSITIONS[state]:
            job = OneJob(Queue())
            for each in path_to(state):
                job.happens(each)
            saved = None if state is JobState.FRESH else job.entry().saved()
            job.happens(event)
            job.queue.undo(job.seq, saved)
            assert job.state is state
