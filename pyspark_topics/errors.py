"""Why a data directory cannot be read. Every text names the path, what is wrong there, and what to do if anything."""

from __future__ import annotations

import logging

log = logging.getLogger("pyspark_topics")


class NotADataDirectory(ValueError):
    """There is nothing to read at the path that was given. The text says what is missing."""


class UnknownFormat(ValueError):
    """A newer server wrote this. Update this package; nothing is skipped or guessed."""


class CorruptFile(ValueError):
    """A file is damaged or missing. The text names the file, the place, the topic where it can be told, and the
    reason."""


class ColdPathMissing(ValueError):
    """Records are in the server's cold tier, and nobody said where that is."""


class Trimmed(FileNotFoundError):
    """The log begins after the position of the catalog that was read: the server has made newer ones meanwhile."""


def tell(damage: CorruptFile, fail: bool) -> None:
    """Raise it, or with option failOnDataLoss=false log it: the caller goes on behind what is damaged."""
    if fail:
        raise damage
    log.warning("damaged, and skipped: %s", damage)
