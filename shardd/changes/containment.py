"""Containment: an exception that a request meets fails that request, and the shard serves on.

    raised before anything is staged       the request gets `500 internal`
    raised after that, before the write    what the request has staged is undone, newest first; then as above
    raised in an indivisible block         memory is half changed: the exception leaves the shard, and the process ends

The first two hold wherever a request is worked on: when it arrives (`shardd.shard.Shard.handle`), and when it
continues later (`attempt`).
"""

from __future__ import annotations

from collections.abc import Callable

from proto.ipc.message import Message, Reply, Request
from proto.model.errors import TopicsError
from proto.process.faults import faults
from shardd.storage.errors import SegmentError, damaged
from shardd.storage.group_commit import Commits
from shardd.storage.indivisible import indivisible

Respond = Callable[[Message], None]


class Answering:
    """The `respond` of one request, which knows whether it was answered."""

    __slots__ = ("_finish", "answered")

    def __init__(self, finish: Respond) -> None:
        self._finish = finish
        self.answered = False

    def __call__(self, message: Message) -> None:
        self._finish(message)
        self.answered = self.answered or isinstance(message, Reply)


class Containment:
    def __init__(self, commits: Commits) -> None:
        self._commits = commits

    def contain(self, fault: Exception, request: Request, respond: Respond, mark: int) -> None:
        """Fail a request because of `fault`, which is being handled. `mark` is `Commits.staged_total` of before. Raises
        the fault if memory is half changed."""
        if indivisible.broken:
            raise fault
        error = faults.failed(request.op)
        with indivisible:
            self._commits.take_back(mark, error)
            if not getattr(respond, "answered", False):
                respond(Reply(request.id, error=error))

    def attempt(self, request: Request, respond: Respond, work: Callable[[], None]) -> None:
        """Go on with a request that was put off. An error that `work` raises is its answer."""
        mark = self._commits.staged_total
        try:
            work()
        except TopicsError as error:
            respond(Reply(request.id, error=error))
        except SegmentError as error:
            respond(Reply(request.id, error=damaged(error)))
        except Exception as fault:
            self.contain(fault, request, respond, mark)
