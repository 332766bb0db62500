"""Errors of reading a data directory. Every message names the path, the problem and the remedy, if there is one."""

from __future__ import annotations

import logging

log = logging.getLogger("pyspark_topics")


class NotADataDirectory(ValueError):
    """The path has no data directory. The message says what is missing."""


class UnknownFormat(ValueError):
    """A newer server wrote the file. The remedy is to update this package; a reader never skips or guesses it."""


class CorruptFile(ValueError):
    """A file is damaged or missing. The message names the file, the offset, the topic if known, and the reason."""


class ColdPathMissing(ValueError):
    """Records are in the server's cold tier, and option coldPath is not set."""


class BucketError(OSError):
    """A bucket refused a call, or cannot be reached. The message says which, and what to check."""


class Trimmed(FileNotFoundError):
    """The log begins after the position of the catalog that was read: the server has written newer catalogs."""


def tell(damage: CorruptFile, fail: bool) -> None:
    """Raise `damage` if `fail`; else (option failOnDataLoss=false) log it, and the caller skips the damaged part."""
    if fail:
        raise damage
    log.warning("damaged, and skipped: %s", damage)
