"""Map bodies: the body of every frame but a batch, one CBOR map. Each kind of frame has a Struct with its fields.

A body is written with its fields in the order of the Struct, without those that are UNSET. A reader ignores fields that
it does not know. A field with a default may be missing: older releases did not write it.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
from msgspec import UNSET, Struct

from proto.format.frame import Frame, Kind, encode_map


class MapBody(Struct):
    """The fields of one kind of frame."""

    kind: ClassVar[Kind]

    def encode(self, topic_id: int, ts_ms: int, *, frame_no: int = 0, synced_no: int = 0) -> Frame:
        return encode_map(self.kind, topic_id, self.fields(), ts_ms, frame_no=frame_no, synced_no=synced_no)

    def fields(self) -> dict[str, Any]:
        """The map that the frame has."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not UNSET}
