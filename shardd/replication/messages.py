"""The messages of a replica and its caller: parts, positions, requests and their answers, notices.

Any request is answered UNKNOWN if it got no answer in time, or one that says nothing about what was done.
"""

from __future__ import annotations

from enum import Enum, StrEnum

from msgspec import Struct
from msgspec.structs import replace


class Kind(StrEnum):
    """The kind of a part of the log."""

    FRAMES = "frames"
    FENCE = "fence"
    """The beginning of a term: no part of an earlier term comes after it."""
    END = "end"
    """The end of a term whose holder gave it up. Never removed either."""


class Part(Struct, frozen=True):
    """The header of `log/<number>`. A fence and an end have no frames: `first_no` is `last_no + 1`, and says only
    what their creator had; readers pass over it."""

    number: int
    kind: Kind
    term: int
    nonce: str
    first_no: int
    last_no: int


class Position(Struct, frozen=True):
    """A place in the log: all frames up to `frame_no`, which part `part` ends with."""

    part: int = 0
    frame_no: int = 0


class Seen(Struct, frozen=True):
    """The findings of a look. Each value was true at a moment between the request and its answer."""

    term: int
    """The newest term; 0 if there is none."""
    nonce: str
    """Of the newest term."""
    alive: int | None
    """Counter of the newest term's `alive` object; None if there is none."""
    manifest: Position
    """Where a restore from the newest manifest continues: after the last frame in its files, and after the last part
    that it does not need. The beginning if there is none."""
    replaced: int | None = None
    """Counter of the `alive` object of the term that the look asked for."""
    unread: int = 0
    """The last part that a manifest which cannot be read may reach; 0 if there is none, or if one that can be read
    reaches further."""
    time_to_live: float = 0.0
    """Seconds, by which the newest term's holder is silent and renews; 0 if the term does not say."""


class Result(Enum):
    DONE = "done"
    TAKEN = "taken"
    """The name exists (412)."""
    ABSENT = "absent"
    DAMAGED = "damaged"
    """The part is not valid; or it is missing, although later ones are there that no manifest replaces."""
    DIFFERS = "differs"
    """The part has other frames than the local log under the same numbers."""
    UNKNOWN = "unknown"
    """No answer, or one that says nothing about what was done: a timeout, a reset, 409, 429, 5xx."""


class Request(Struct, frozen=True, eq=False):
    """Base of requests. Two are the same only if they are one object."""


class Look(Request, frozen=True):
    """Find the newest term, its `alive` counter and the newest manifest; also the counter of term `replaced`, unless
    that is 0. Answer: `Seen`."""

    replaced: int = 0


class CreateTerm(Request, frozen=True):
    """Create `terms/<term>`, if absent. Answer: DONE or TAKEN; neither is relied on."""

    term: int
    abrupt: bool = False
    """Whether it replaces a holder on another machine whose term has no end: that one may have acknowledged, and shown
    to readers, what the log lacks."""
    living: bool = False
    """Whether that holder may still answer. The term's owner knows for how long; another process does not, so the term
    is its directory's own only when the shard is held."""


class Renew(Request, frozen=True):
    """Write `alive/<term>`. Answer: DONE."""

    term: int
    counter: int


class CreatePart(Request, frozen=True):
    """Create the part with its frames, if absent. Answer: DONE or TAKEN."""

    part: Part


class ReadPart(Request, frozen=True):
    """Read a part. Answer: `Part`, ABSENT, or DAMAGED."""

    number: int
    ends: bool = False
    """Whether to look for later parts if it is absent, so that a hole is not taken for the end of the log."""


class Apply(Request, frozen=True):
    """Compare the part's frames with those that the local log has under their numbers; append those that it lacks.
    Answer: DONE, or DIFFERS if they are not the same."""

    part: Part


class Restore(Request, frozen=True):
    """Set the local shard aside and make it again from the newest manifest; without one it is empty. Answer: the
    `Position` from which on parts have to be applied. The first of them may begin with frames that are there."""


class Hold(Struct, frozen=True):
    """The replica holds the shard. The caller opens it with a boot of its own and offers what it has in its log."""

    term: int


class Shipped(Struct, frozen=True):
    """The frames of the part are in the bucket: changes that wait for that may commit."""

    part: Part


class Ended(Struct, frozen=True):
    """The replica is drained or deposed: nothing is answered any more."""

    deposed: bool


Answer = Result | Seen | Part | Position
Output = Request | Hold | Shipped | Ended


class Timing(Struct, frozen=True):
    """Seconds."""

    time_to_live: float = 10.0
    follow: float = 0.25
    """Between two reads of a part that is not there yet."""
    hurry: float = 0.05
    """The same, of a shard that is moved."""
    retry: float = 0.05
    """Pause after a request without a clear answer; it doubles up to `retry_most`."""
    retry_most: float = 1.0

    @property
    def renewal(self) -> float:
        return self.time_to_live / 3

    @property
    def silence(self) -> float:
        """After this long without a renewal a holder is silent."""
        return self.time_to_live * 2 / 3

    @property
    def handover(self) -> float:
        """A candidate waits for this long for the holder that it replaces to be silent: `silence`, and a quarter more,
        since the clock of one machine may run faster than that of another one."""
        return self.silence * 5 / 4

    def of(self, term: Seen) -> Timing:
        """These times, for a term whose holder may have a longer time to live."""
        return replace(self, time_to_live=max(self.time_to_live, term.time_to_live))
