"""Log file of a shard: finds its frames, and distinguishes an unfinished end from damage.

bytes where a frame should begin                                decision
a frame with the next number                                    read it
nothing, the file ends                                          done
a frame of an unknown version or kind                           refuse
anything else, in a file that has a successor                   error with path and offset
anything else, in the newest file, and a later complete frame   error with path and offset: the frame was complete once
  says that this one was synced
anything else, in the newest file                               done: the server is writing it, or died doing so

If damage is to be skipped (`fail` is false), the error is logged and reading continues at the next complete frame.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyspark_topics import frames
from pyspark_topics.errors import CorruptFile, UnknownFormat, tell
from pyspark_topics.segment import Entry
from pyspark_topics.storage import File


class LogFile:
    """Snapshot of one log file. Bytes that the server appends later are not seen.

    `first` is the number of the file's first frame, `until` that of its successor's first frame (from their names), or
    None for the shard's newest file. `end` limits the bytes read. `names` maps topic ids to known names, for errors.
    """

    def __init__(self, file: File, first: int, until: int | None, end: int | None = None, *, fail: bool = True) -> None:
        self.file = file
        self.first = first
        self.until = until
        self.fail = fail
        self.names: Mapping[int, str] = {}
        # The server may truncate the newest file after a failed write.
        content = file.open(end, settled=until is not None)
        if end is not None and content.size < end and until is not None:
            tell(CorruptFile(f"{file.path}: {content.size} bytes, but there were {end} at the planning"), fail)
        self.buffer = content.buffer
        self.view = content.view
        self.size = len(self.view)
        content.need([(0, self.size)])

    def heads(self) -> Iterator[frames.Head]:
        """The headers of all frames, in order, without verifying their checksums. Raises `CorruptFile`."""
        offset, expected = 0, self.first
        while expected != self.until and (offset < self.size or self.until is not None):
            try:
                head = frames.Head(self.view, offset)
                if head.frame_no != expected:
                    raise frames.FrameError(f"frame number {head.frame_no} where {expected} should be")
            except UnknownFormat as error:
                raise UnknownFormat(f"{self.file.at(offset)}: {error}") from error
            except frames.FrameError as error:
                self.ends_at(offset, expected, error)
                if self.fail or (found := self._whole_after(offset, expected)) is None:
                    return
                head = found
                offset = head.offset
            yield head
            offset += head.length
            expected = head.frame_no + 1

    def head(self, entry: Entry) -> frames.Head:
        """The header of a batch. Raises `FrameError`, `UnknownFormat`."""
        return frames.Head(self.view, entry.offset)

    def _whole_after(self, offset: int, number: int) -> frames.Head | None:
        """The first undamaged frame after `offset` with a number above `number`, and of this file; else None."""
        for head in frames.whole_after(self.view, offset):
            if number < head.frame_no < (self.until or head.frame_no + 1):
                return head
        return None

    def ends_at(self, offset: int, number: int, reason: frames.FrameError) -> None:
        """Return if the log may end at this byte, where frame `number` should be. Otherwise raise `CorruptFile`, or log
        the damage if it is skipped."""
        name = self.names.get(frames.topic_id(self.view, offset))  # the id may be intact
        whose = f'topic "{name}"' if name else "of what topic cannot be told"
        if self.until is not None:
            damage = f"frame {self.until} follows elsewhere, so frame {number} is damaged or missing"
        else:
            later = (head for head in frames.whole_after(self.view, offset) if head.synced_no >= number)
            if (head := next(later, None)) is None:
                return
            damage = (
                f"frame {head.frame_no} at byte {head.offset} says that frame {number} was written completely, so the "
                "file is damaged"
            )
        error = CorruptFile(f"{self.file.at(offset)} ({whose}): {reason}; {damage}{self.file.remedy}")
        error.__cause__ = reason
        tell(error, self.fail)
