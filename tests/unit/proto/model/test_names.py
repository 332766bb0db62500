import pytest

from proto.model.errors import TopicsError
from proto.model.names import check_topic, is_topic, shard_of


@pytest.mark.parametrize("name", ["a", "0", "A9", "render-queue:tenantA", "jobs.dlq", "a_b", "x" * 255])
def test_names_inside_the_grammar(name: str) -> None:
    assert is_topic(name)
    assert check_topic(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "-a", "_a", ":a", "a/b", "a b", "a\0", "a\n", "é", "a>b", "x" * 256, "x" * 300, "٣"]
)
def test_names_outside_the_grammar(name: str) -> None:
    assert not is_topic(name)
    with pytest.raises(TopicsError) as caught:
        check_topic(name)
    assert caught.value.status == 400
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    ("name", "shards", "owner"),
    [("jobs", 2, 1), ("jobs", 8, 7), ("flights:UA", 2, 0), ("flights:UA", 5, 1), ("a", 3, 1)],
)
def test_the_owner_of_a_name_never_changes(name: str, shards: int, owner: int) -> None:
    """`shard_of` is part of the on-disk format: another result would lose topics."""
    assert shard_of(name, shards) == owner


def test_names_spread_evenly() -> None:
    counts = [0, 0, 0, 0]
    for i in range(4000):
        counts[shard_of(f"topic:{i}", 4)] += 1
    assert min(counts) > 900
