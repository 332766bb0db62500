"""Names of the objects of a service in its bucket.

    service.json                         what this prefix holds; created once
    members/<machine>                    which machines there are (`members`); replaced
    moves/<number>                       which shard is given to which machine (`members`); the last ones
    nodes/<number>                       their numbers (`nodes`); created once each
    shard-07/terms/<number>              the holders of the shard; created once each
    shard-07/alive/<number>              a sign of life of a term's holder; replaced
    shard-07/log/<number>                parts of the log, and fences (`parts`); created once each
    shard-07/checkpoints/<name>/<n>      chunks of the files of a checkpoint (`manifests`); created once each
    shard-07/manifests/<number>          what a restore needs as of the part of this number; created once each

Numbers have 20 decimal digits, so names sort as numbers do.
"""

from __future__ import annotations

SERVICE = "service.json"
MEMBERS = "members/"
MOVES = "moves/"
NODES = "nodes/"


def number_of(name: str) -> int | None:
    """The number at the end of a name; None if there is none, or one that this project never gives."""
    last = name.rpartition("/")[2]
    number = int(last) if len(last) == 20 and last.isascii() and last.isdecimal() else 0
    return number if 0 < number < 1 << 62 else None


def move_name(number: int) -> str:
    return f"{MOVES}{number:020d}"


class ShardNames:
    def __init__(self, index: int) -> None:
        self.prefix = f"shard-{index:02d}/"
        self.terms = f"{self.prefix}terms/"
        self.log = f"{self.prefix}log/"
        self.checkpoints = f"{self.prefix}checkpoints/"
        self.manifests = f"{self.prefix}manifests/"

    def term(self, number: int) -> str:
        return f"{self.terms}{number:020d}"

    def alive(self, term: int) -> str:
        return f"{self.prefix}alive/{term:020d}"

    def part(self, number: int) -> str:
        return f"{self.log}{number:020d}"

    def chunk(self, checkpoint: str, index: int) -> str:
        return f"{self.checkpoints}{checkpoint}/{index:06d}"

    def manifest(self, number: int) -> str:
        return f"{self.manifests}{number:020d}"
