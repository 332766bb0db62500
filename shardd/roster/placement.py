"""Placement: which machine is to hold which shard. Pure functions of what one machine sees; each machine calls them.

Every machine ranks all machines for a shard by rendezvous hashing, so machines that see the same agree, and one that
comes or goes changes no order among the others. The first ranks, the *seconds*, follow the shard and claim it first.

A holder keeps what it may: loads stay between the mean rounded down and rounded up, and the fewest shards that do that
are moved. Shards are counted, not their load.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from shardd.roster.members import Standing


class Transfer(NamedTuple):
    """A shard, the machine that holds it, and the one that is to hold it."""

    shard: int
    source: str
    target: str


def score(machine: str, shard: int) -> bytes:
    """The machine with the largest score ranks first for the shard."""
    return blake2b(f"{machine}/{shard}".encode(), digest_size=8).digest()


def ranks(shard: int, standings: Mapping[str, Standing], holder: str, target: str = "") -> list[str]:
    """The order in which machines claim the shard when its term is over. `holder` had the newest term: it is the last
    one, since a restart takes its own term over by itself. `target` is the one that a move names: it is the first."""
    able = [machine for machine, standing in standings.items() if standing is not Standing.LEAVING]

    def order(machine: str) -> tuple[bool, bool, bool, bytes]:
        late = machine == holder, standings[machine] is Standing.HELD_BACK
        return machine != target, *late, bytes(255 - each for each in score(machine, shard))

    return sorted(able, key=order)


def next_transfer(
    standings: Mapping[str, Standing],
    holders: Sequence[str],
    follows: Callable[[int, str], bool] = lambda *_: False,
    meant: str = "",
    fails: Callable[[int, str], bool] = lambda *_: False,
) -> Transfer | None:
    """The next shard to be moved; None if all are where they may stay. `holders` has the machine of each shard's newest
    term, in the order of shards; one that is not there is none, and those who claim see to its shards. Of the shards
    that may be moved, those that the target `follows` come first: it may have another view of which one it is to get.
    The target stays the one that was `meant` until now, as long as it may get a shard: it may have begun to follow, and
    the standing of another one may change back and forth. A target gets no shard that `fails` on it. If all that it may
    get do, it counts as a machine that gets nothing.
    """
    seen = dict(standings)
    while (pair := _pair(seen, holders, meant)) is not None:
        source, target = pair
        held = [shard for shard, holder in enumerate(holders) if holder == source and not fails(shard, target)]
        if held:
            choice = max(held, key=lambda each: (follows(each, target), _gain(each, source, target), -each))
            return Transfer(choice, source, target)
        seen[target] = Standing.UNPROVEN
    return None


def _pair(standings: Mapping[str, Standing], holders: Sequence[str], meant: str) -> tuple[str, str] | None:
    """The machine that is to give a shard away next, and the one that is to get it."""
    loads = Counter(dict.fromkeys(standings, 0))
    loads.update(holder for holder in holders if holder in standings)
    leaving = [each for each, standing in standings.items() if standing is Standing.LEAVING and loads[each]]
    targets = [machine for machine, standing in standings.items() if standing is Standing.PLACEABLE]
    if leaving and not targets:  # it was told to leave, and would wait for an hour
        targets = [machine for machine, standing in standings.items() if standing is Standing.HELD_BACK]
    if not targets:
        return None
    least, most = _bounds(standings, loads, targets)
    over = leaving or [each for each in standings if loads[each] > most]
    need = [each for each in targets if loads[each] < least]
    sources = over or ([each for each in targets if loads[each] > least] if need else [])
    needy = need or [each for each in targets if loads[each] < most]
    if not sources or not needy:
        return None
    source = min(sources, key=lambda each: (-loads[each], each))
    stays = meant in needy or (over and meant in targets and loads[meant] < most)
    return source, meant if stays else min(needy, key=lambda each: (loads[each], each))


def _gain(shard: int, source: str, target: str) -> int:
    """How much better the target ranks than the source."""
    return int.from_bytes(score(target, shard)) - int.from_bytes(score(source, shard))


def _bounds(standings: Mapping[str, Standing], loads: Mapping[str, int], targets: Sequence[str]) -> tuple[int, int]:
    """The least and the most that each target is to hold. A machine that gets nothing keeps at most an equal part."""
    staying = [each for each, standing in standings.items() if standing is not Standing.LEAVING]
    total = sum(loads.values())
    fair = -(-total // len(staying))
    kept = sum(min(loads[each], fair) for each in staying if each not in targets)
    return (total - kept) // len(targets), -(-(total - kept) // len(targets))
