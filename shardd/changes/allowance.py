"""The allowance: bytes and topics that the shard may add without a client's request.

Router copies and letters from other shards' outboxes use it. The caps cover all shards, and only the gateway knows
what all of them hold. The gateway therefore lends: a request `allowance` says how many bytes and topics the shard may
add. The shard answers the request when the loan ends. Until then the gateway's ledger counts the whole loan as added
(`gateway.shards.ledger`). The answer carries the shard's counters, so the unused rest becomes free.

    state     event → next
    NONE      `allowance` request → LENT, possibly 0 bytes and 0 topics · a want → remembered until the next loan
    LENT      taken from → LENT · a want exceeds the rest, `give_back`, or `renew` → NONE, the request is answered
              the gateway disconnects → NONE, and the rest is void

Taken bytes and topics count as held at once. The counters of every answer include taken amounts that are not visible
yet. A client's write leaves room for the loan (`lent_bytes`, `lent_topics`). So the proof of `gateway.shards.ledger`
covers loans: a loan is one more request that may add something.

Work without allowance waits, and nothing is lost: copies stay in their source, letters in their queue. If the process
dies, its loan ends. The gateway counts the loan as added until the next process has sent its counters.

Caps apply from `bind` on. A shard without a gateway (in a tool or a test) is never bound and has no caps.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import trio

from proto.ipc import operations
from proto.ipc.message import Parked, Reply, Request
from proto.model.errors import ErrorCode, TopicsError
from proto.model.limits import Limits
from shardd.changes.admission import RETRY_AFTER_MS, too_many_topics
from shardd.changes.containment import Respond


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
        self.lent_bytes = 0
        """Bytes lent and not taken."""
        self.lent_topics = 0
        """Topics lent and not taken."""
        self._loan: tuple[Hashable, int, Respond] | None = None
        self._wanted = (0, 0)
        self._waiting: list[Waiter] = []
        self.pending_topics = 0
        """Topics taken and not visible yet. Bytes taken are the topics' promises (`shardd.topic.promises`)."""
        self.changed = trio.Event()
        """Set and replaced by a new event at every new loan."""

    def bind(self) -> None:
        """Applies the caps: from now on the shard adds only what it was lent."""
        self._bound = True

    # The gateway's side

    def lend(self, request: Request[operations.Allowance], caller: Hashable, respond: Respond) -> None:
        """Starts a loan, which replaces the present one, and serves the waiters it covers.

        Options: `bytes` and `topics` of the loan; `asked`, the (bytes, topics) wanted that it responds to. A waiter
        that wanted no more than `asked` and is not covered is refused: the gateway has no room for it."""
        options = request.options
        self._end()
        self._loan = caller, request.id, respond
        self.lent_bytes, self.lent_topics = options.bytes, options.topics
        respond(Parked(request.id))
        asked = options.asked
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
        if more[0] > max(asked[0], self.lent_bytes) or more[1] > max(asked[1], self.lent_topics):
            self.want(*more)

    def give_back(self, request: Request[operations.AllowanceReturn], caller: Hashable, respond: Respond) -> None:
        """Ends the loan, because the gateway needs its rest for another request."""
        self._end()
        respond(Reply(request.id))

    def cancel(self, caller: Hashable, ident: int) -> None:
        """Voids the loan if it is this request: the gateway no longer waits for its answer."""
        if self._loan is not None and self._loan[:2] == (caller, ident):
            self._loan = None
            self.lent_bytes = self.lent_topics = 0

    def renew(self) -> None:
        """Ends the loan. Called periodically: the rest becomes free, and the gateway gets the shard's counters."""
        self._end()

    def _end(self) -> None:
        """Ends the loan and answers its request. The answer's counters include everything that was taken."""
        loan, self._loan = self._loan, None
        self.lent_bytes = self.lent_topics = 0
        if loan is not None:
            wanted, self._wanted = self._wanted, (0, 0)
            _, ident, respond = loan
            respond(Reply(ident, extra=operations.Want(*wanted)))

    # Inside

    def covers(self, size: int, topics: int = 0) -> bool:
        """Whether the loan covers `size` bytes and `topics` topics now; True if the shard is not bound."""
        enough = not size or not self._limits.max_total_bytes or size <= self.lent_bytes
        return not self._bound or (enough and (not topics or not self._limits.max_topics or topics <= self.lent_topics))

    def take(self, size: int, topics: int = 0) -> None:
        """Takes from the loan, which must cover it. Bytes become the promise of a topic. For topics, the caller calls
        `settled` once they are visible or were not added."""
        if self._limits.max_total_bytes and self._bound:
            self.lent_bytes -= size
        if self._limits.max_topics and self._bound:
            self.lent_topics -= topics
        self.pending_topics += topics

    def settled(self, topics: int) -> None:
        """Topics that were taken are visible, or were not added after all."""
        self.pending_topics -= topics

    def want(self, size: int, topics: int = 0) -> None:
        """Ends the loan and asks the gateway for one that covers this."""
        self._wanted = max(self._wanted[0], size), max(self._wanted[1], topics)
        self._end()

    def wait(self, size: int, topics: int, go: Callable[[], None], refuse: Callable[[TopicsError], None]) -> None:
        """Asks for a loan, and calls `go` when one covers this, or `refuse` when the gateway has no room for it."""
        self._waiting.append(Waiter(size, topics, go, refuse))
        self.want(size, topics)

    def _refusal(self, size: int, topics: int) -> TopicsError:
        limits = self._limits
        if topics > self.lent_topics and limits.max_topics:
            return too_many_topics(limits)
        return TopicsError(
            ErrorCode.THROTTLED,
            f"{size} bytes are more than TOPICS_MAX_TOTAL_BYTES, {limits.max_total_bytes}, has left for all topics; "
            "delete records or topics first",
            {"limit": "max_total_bytes", "max": limits.max_total_bytes, "bytes": size},
            retry_after_ms=RETRY_AFTER_MS,
        )
