"""A topic that was ephemeral for a while: what a restart took then stays gone when it is durable again."""

from tests.support.harness import Harness


def test_records_lost_while_ephemeral_do_not_come_back() -> None:
    shard = Harness()
    shard.append("c", 1, 2, 3)
    shard.call("configure", "c", {"durability": "ephemeral"})
    shard = shard.restarted(shard.disk.after_crash("process"))  # type: ignore[attr-defined]
    assert shard.call("state", "c")["earliest_seq"] == 4
    shard.call("configure", "c", {"durability": "fsync"})
    shard = shard.restarted(shard.disk.after_crash("process"))  # type: ignore[attr-defined]
    found = shard.diff("c")
    assert (found["records"], found["earliest_seq"], found["tombstone"]["gap_to"]) == ([], 4, 3)
    assert shard.append("c", "new")["first_seq"] == 4
