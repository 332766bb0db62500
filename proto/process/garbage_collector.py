"""Garbage collection: when Python's collector searches for cycles, and among which objects.

By default the collector searches its young objects every 700 allocations, and now and then all live objects. A search
of all takes tens of milliseconds after the imports of a process, and a few tenths of a second with 20 000 topics. No
request is served meanwhile. Objects that exist when a process is ready stay and make no cycles: modules, topics,
batches. So the collector searches only later objects, the cycles of exceptions and tasks among them (`calm`).
"""

from __future__ import annotations

import gc

YOUNG = 10_000
"""Allocations, less deallocations, between two searches of the youngest objects."""
MIDDLE = 10
"""Searches of the youngest objects to one of the two youngest generations."""
NEVER = 1 << 30
FEW = 1000
"""Up to this many topics or connections, a search of all objects takes only some milliseconds."""


def calm(old: int = NEVER) -> None:
    """Exclude all present objects from searches, and search less often. `old` is the number of searches of the younger
    generations to one of all objects made since. Call it when a process is ready."""
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, old)
    gc.enable()


def search(things: int) -> None:
    """Search all objects made since `calm`, if there are few topics or connections. Call it now and then: what waited
    for long and is garbage now may hold large bodies, and a quiet process makes too few objects to be searched."""
    if things <= FEW:
        gc.collect()


def search_recent() -> None:
    """Search the objects of the two youngest generations."""
    gc.collect(1)
