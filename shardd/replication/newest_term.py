"""The newest term of a shard, as one replica sees it: is it over, and may its holder still answer? No I/O, no clock.

Rules 6 and 7 of `shardd.replication.protocol` say what rests on this.
"""

from __future__ import annotations

import math

from shardd.replication.messages import CreateTerm, Kind, Look, Part, Seen, Timing


class NewestTerm:
    rank: float = 0
    """How many machines are to claim before this one: once a term is over, it waits for so many thirds of the time to
    live. The caller may change it at any time. Infinite: it claims nothing but what its own directory held."""

    def __init__(
        self,
        nonce: str,
        timing: Timing,
        previous: tuple[str, ...] = (),
        *,
        automatic: bool = True,
        follows: bool = False,
    ) -> None:
        """`nonce` is new at each start of a process. `previous` are the nonces that the same data directory used last:
        a term of theirs is over. With `automatic` False a term that is only silent is not taken over, and holders
        answer without a term, too; with `follows` no term of another machine is taken over, nor, if `automatic`, one of
        the same directory, unless `take_over` says so."""
        self.nonce = nonce
        self.timing = timing
        self.previous = previous
        self.seen: Seen | None = None
        self.over = False
        """Whether the last look showed that it is over."""
        self.look_at = 0.0
        """When a standby looks next."""
        self.waits = automatic
        self._automatic = automatic and not follows
        self._follows = follows
        self._by_hand = False
        self._unchanged_since = 0.0
        self._over_since: float | None = None
        """Begin of the first look that showed the newest term to be over."""
        self._ended_term = 0
        self._taken_term = 0
        """The newest term of another replica, and of no process of this directory, that was taken to be over."""
        self._replaced: Seen | None = None
        """The last look before the present claim, if it showed a holder that may still answer."""
        self._silent_at = 0.0
        """When that holder is silent."""

    def take_over(self) -> None:
        """Take the shard over as if the newest term were over. For operators."""
        self._by_hand = True
        self.look_at = 0.0

    def stand_back(self) -> None:
        """Forget `take_over`, unless it has been carried out."""
        self._by_hand = False

    def look_again(self) -> None:
        """Look for the newest term at once: what is decided by it may be another thing now."""
        self.look_at = 0.0

    @property
    def waits_for_another(self) -> bool:
        """Whether the last look showed a term that is not over, of another replica."""
        return self.seen is not None and self.seen.term > 0 and not self.over

    def observe(self, seen: Seen, now: float) -> None:
        before, self.seen = self.seen, seen
        if before is None or (before.term, before.nonce, before.alive) != (seen.term, seen.nonce, seen.alive):
            self._unchanged_since = now
            self._over_since = None

    def looked(self, seen: Seen, asked_at: float, now: float) -> None:
        """A term is dead if it did not change from the end of one look to the beginning of another, for the time to
        live: this machine's or its holder's, the longer one."""
        self.observe(seen, now)
        timing = self.timing.of(seen)
        dead = asked_at - self._unchanged_since >= timing.time_to_live
        ended, earlier = self._is_past(seen)
        none = seen.term == 0 or seen.nonce == self.nonce  # one of this process that it has not held
        own = (ended and not self._follows) or (earlier and not (self._follows and self.waits))
        over = none or own or self._by_hand or (self._automatic and dead)
        if not over or math.isinf(self.rank):
            self._over_since = None  # who gets a rank late waits as long as the others
        elif self._over_since is None:
            self._over_since = asked_at
        at_once = self._by_hand or seen.nonce == self.nonce or (earlier and not ended)
        began = self._over_since
        waited = began is not None and asked_at - began >= self.rank * timing.renewal
        self.over = over and (at_once or waited)
        if self._automatic and not dead:
            self.look_at = min(self.look_at, self._unchanged_since + timing.time_to_live)

    def _is_past(self, seen: Seen) -> tuple[bool, bool]:
        """Whether the term has ended, and whether it is one of the same directory."""
        return seen.term == self._ended_term, seen.nonce in self.previous

    def claim(self) -> CreateTerm:
        """The creation of the next term."""
        assert self.seen is not None
        if self.seen.nonce not in ("", self.nonce, *self.previous):
            self._taken_term = self.seen.term
        return CreateTerm(self.seen.term + 1, self._taken_term > self._ended_term, self._replaced is not None)

    def look(self) -> Look:
        """The look that tells whose the claimed term is."""
        return Look(self._replaced.term if self._replaced else 0)

    def claimed(self, seen: Seen, now: float) -> None:
        """This look, which has not been observed yet, shows that the claimed term is this replica's."""
        replaced = self._replaced
        if replaced is not None:
            unchanged = seen.replaced == replaced.alive
            self._silent_at = (self._unchanged_since if unchanged else now) + self.timing.of(replaced).handover
        self._by_hand = False  # a later term is another operator's word

    def note_holder(self, seen: Seen) -> None:
        """A claim that follows this look replaces the holder that it shows."""
        if seen.nonce != self.nonce:  # else it came late, and the holder before it may still answer
            self._replaced = seen if self.waits and seen.term and not any(self._is_past(seen)) else None

    def may_answer(self, now: float) -> bool:
        """Whether the holder that is being replaced may still answer requests."""
        replaced = self._replaced
        return replaced is not None and replaced.term != self._ended_term and now < self._silent_at

    def passed(self, part: Part) -> None:
        """The replica has this part of the log."""
        if part.kind is Kind.END:
            self._ended_term = part.term
        if part.kind is Kind.END or (self.seen is not None and part.term > self.seen.term):
            self.look_at = 0.0  # another holder is there, or to come
