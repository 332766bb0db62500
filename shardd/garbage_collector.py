"""Who looks for garbage, and where.

Python's collector looks for cycles at everything that lives, every now and then: with 20 000 topics that takes a few
tenths of a second, in which nothing is served. Topics and batches make no cycles. So it looks only at what was made
lately (`calm`), which is where the cycles of exceptions and tasks are; and at more while that is little (`search`).
"""

from __future__ import annotations

import gc

FEW_TOPICS = 1000
"""Up to so many, a look at everything takes no more than some milliseconds."""


def calm() -> None:
    """From now on, only what was made lately is searched for cycles. To be called when a shard has been read back."""
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], 1 << 30)
    gc.enable()


def search(topics: int) -> None:
    """Now and then: search everything made since `calm`, if that is not much."""
    if topics <= FEW_TOPICS:
        gc.collect()


def search_recent() -> None:
    """Search what was made since the last look."""
    gc.collect(1)
