"""The needs: which shards this machine needs to run, when it last did, and which it cannot run. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Set

from shardd.roster.members import RosterTiming


class Needs:
    def __init__(self, timing: RosterTiming) -> None:
        self._calm = timing.calm
        self.shards: Set[int] = frozenset()
        """Those that this machine needs to run, as of the last look."""
        self._last_at: dict[int, float] = {}
        """When it last needed to run each shard, as far as is known."""
        self._failed_at: dict[int, float] = {}
        """When each shard's process was last seen not to run here. It can run if it was followed or held since.
        Otherwise it counts for long: it is no more seen to fail when its process has ended, and that machine would be
        the target again."""

    def looked(self, needed: Set[int], shards: int, now: float) -> None:
        """Of so many shards, these are needed."""
        self.shards = needed
        known = {shard: self._last_at.get(shard, now) for shard in range(shards)}
        self._last_at = {**known, **dict.fromkeys(needed, now)}

    def idle_s(self, shard: int, now: float) -> float:
        """For how long the shard was not needed, as far as is known."""
        return now - self._last_at.get(shard, now)

    def failed(self, failed: Set[int], able: Set[int], now: float) -> None:
        """The processes of some shards cannot run at this moment, those of others were able to."""
        failed_at = {**self._failed_at, **dict.fromkeys(failed, now)}
        self._failed_at = {each: at for each, at in failed_at.items() if each not in able and now - at < self._calm}

    @property
    def fails(self) -> list[int]:
        """Shards that cannot run here, as far as is known."""
        return sorted(self._failed_at)
