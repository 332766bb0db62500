"""Garbage collection: when Python's collector searches for cycles, and among which objects.

By default the collector now and then searches all live objects. With 20 000 topics that takes a few tenths of a second,
in which the shard serves no request. Topics and batches make no cycles. So the collector searches only recent objects
(`calm`), among them the cycles of exceptions and tasks. It searches more while there are few topics (`search`).
"""

from __future__ import annotations

import gc

FEW_TOPICS = 1000
"""Up to this many topics, a search of all objects takes only some milliseconds."""


def calm() -> None:
    """Exclude all present objects from the search for cycles, and turn the search of old objects off. Call it when a
    shard has been recovered."""
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], 1 << 30)
    gc.enable()


def search(topics: int) -> None:
    """Search all objects made since `calm`, if there are few topics. Call it now and then."""
    if topics <= FEW_TOPICS:
        gc.collect()


def search_recent() -> None:
    """Search the objects of the two youngest generations."""
    gc.collect(1)
