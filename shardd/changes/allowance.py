"""What this shard may add by itself, without a client's request: copies of routers, and what outboxes of others bring.

The caps are over all shards, and only the gateway knows what all of them hold. So it lends: a request `allowance` says
how many bytes and topics this shard may add, and is answered when that is over. Until then the gateway's books have
all of it as added (`gateway.shards.ledger`); the answer carries what was really added, so that the rest is free again.

    state     event → next
    NONE      a request comes → LENT, maybe with nothing in it · something is wanted → remembered until then
    LENT      taken from → LENT · more is wanted than is left, it was asked back, or it is old → NONE, answered
              the gateway went away → NONE, and what is left is void

What was taken counts as held from then on: the counters of every answer include what is not visible yet, and a client's
write leaves room for what is lent (`lent_bytes`, `lent_topics`). So the proof of `gateway.shards.ledger` covers all of
it: a loan is one more request that may add something.

What lacks an allowance waits, and loses nothing: copies in their source, letters in their queue. If the process dies
the loan dies with it; the gateway counts it as added until the next process has spoken.

`bind` says that somebody lends. Before, nothing is limited: a shard without a gateway (a tool, a test) has no caps.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import trio

from proto.ipc.message import Message, Parked, Reply, Request
from proto.model.errors import ErrorCode, TopicsError
from proto.model.limits import Limits
from shardd.changes.admission import RETRY_AFTER_MS

Respond = Callable[[Message], None]


@dataclass(slots=True)
class Waiter:
    bytes: int
    topics: int
    go: Callable[[], None]
    refuse: Callable[[TopicsError], None]


class Allowance:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._bound = False
        self._bytes = 0
        self._topics = 0
        self._loan: tuple[Hashable, int, Respond] | None = None
        self._wanted = (0, 0)
        self._waiting: list[Waiter] = []
        self.pending_bytes = 0
        """Taken, and not visible yet."""
        self.pending_topics = 0
        self.changed = trio.Event()
        """Set, and another one made, when there is another loan."""

    def bind(self) -> None:
        """From now on nothing may be added that is not lent."""
        self._bound = True

    @property
    def lent_bytes(self) -> int:
        """What is lent and not visible yet, taken or not."""
        return self._bytes + self.pending_bytes

    @property
    def lent_topics(self) -> int:
        """What is lent and not taken."""
        return self._topics

    # The gateway's side

    def lend(self, request: Request, caller: Hashable, respond: Respond) -> None:
        """Options: `bytes`, `topics`, and `asked`, the wish that this answers."""
        options = request.options
        self._end()
        self._loan = caller, request.id, respond
        self._bytes, self._topics = options["bytes"], options["topics"]
        respond(Parked(request.id))
        asked = tuple(options["asked"])
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if self.covers(each.bytes, each.topics):
                each.go()
            elif each.bytes <= asked[0] and each.topics <= asked[1]:
                each.refuse(self._refusal(each.bytes, each.topics))
            else:
                self._waiting.append(each)
        self.changed.set()
        self.changed = trio.Event()
        wanted, self._wanted = self._wanted, (0, 0)
        unheard = [wanted, *((each.bytes, each.topics) for each in self._waiting)]
        more = max(size for size, _ in unheard), max(topics for _, topics in unheard)
        if more[0] > max(asked[0], self._bytes) or more[1] > max(asked[1], self._topics):
            self.want(*more)

    def give_back(self, request: Request, caller: Hashable, respond: Respond) -> None:
        """The gateway needs it elsewhere."""
        self._end()
        respond(Reply(request.id))

    def cancel(self, caller: Hashable, ident: int) -> None:
        """The gateway does not wait for an answer any more."""
        if self._loan is not None and self._loan[:2] == (caller, ident):
            self._loan = None
            self._bytes = self._topics = 0

    def renew(self) -> None:
        """Now and then: what is not used is free for others, and the gateway hears what this shard holds."""
        self._end()

    def _end(self) -> None:
        """The loan is over. Its answer's counters have everything that was taken."""
        loan, self._loan = self._loan, None
        self._bytes = self._topics = 0
        if loan is not None:
            wanted, self._wanted = self._wanted, (0, 0)
            _, ident, respond = loan
            respond(Reply(ident, extra={"want": wanted}))

    # Inside

    def covers(self, size: int, topics: int = 0) -> bool:
        """May so much be added now?"""
        enough = not size or not self._limits.max_total_bytes or size <= self._bytes
        return not self._bound or (enough and (not topics or not self._limits.max_topics or topics <= self._topics))

    def take(self, size: int, topics: int = 0) -> None:
        """It will be added; follow with `settled`. It must be covered."""
        if self._limits.max_total_bytes and self._bound:
            self._bytes -= size
        if self._limits.max_topics and self._bound:
            self._topics -= topics
        self.pending_bytes += size
        self.pending_topics += topics

    def settled(self, size: int, topics: int = 0) -> None:
        """What was taken is visible, or was not added after all."""
        self.pending_bytes -= size
        self.pending_topics -= topics

    def want(self, size: int, topics: int = 0) -> None:
        """Ask for a loan that covers this."""
        self._wanted = max(self._wanted[0], size), max(self._wanted[1], topics)
        self._end()

    def wait(self, size: int, topics: int, go: Callable[[], None], refuse: Callable[[TopicsError], None]) -> None:
        """`go` when this is covered; `refuse` when the gateway has said that there is no room for it."""
        self._waiting.append(Waiter(size, topics, go, refuse))
        self.want(size, topics)

    def _refusal(self, size: int, topics: int) -> TopicsError:
        limits = self._limits
        if topics > self._topics and limits.max_topics:
            return TopicsError(
                ErrorCode.THROTTLED,
                f"there are as many topics as TOPICS_MAX_TOPICS allows, {limits.max_topics}; delete some first",
                {"limit": "max_topics", "max": limits.max_topics},
                retry_after_ms=RETRY_AFTER_MS,
            )
        return TopicsError(
            ErrorCode.THROTTLED,
            f"{size} bytes are more than TOPICS_MAX_TOTAL_BYTES, {limits.max_total_bytes}, has left for all topics; "
            "delete records or topics first",
            {"limit": "max_total_bytes", "max": limits.max_total_bytes, "bytes": size},
            retry_after_ms=RETRY_AFTER_MS,
        )
