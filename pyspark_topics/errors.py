"""Why a data directory cannot be read. Every text names the path, what is wrong there, and what to do if anything."""

from __future__ import annotations


class NotADataDirectory(ValueError):
    """There is nothing to read at the path that was given. The text says what is missing."""


class UnknownFormat(ValueError):
    """A newer server wrote this. Update this package; nothing is skipped or guessed."""


class CorruptFile(ValueError):
    """A file is damaged or missing. The text names the file, the place and the reason."""


class ColdPathMissing(ValueError):
    """Records are in the server's cold tier, and nobody said where that is."""


class Trimmed(FileNotFoundError):
    """The log begins after the position of the catalog that was read: the server has made newer ones meanwhile."""
