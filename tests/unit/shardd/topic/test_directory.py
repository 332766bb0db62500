"""The directory: names that readers see, names as they will be, and their totals."""

from __future__ import annotations

import pytest

from proto.model.durability import Durability
from proto.model.errors import ErrorCode, TopicsError
from proto.model.topic_config import TopicConfig
from shardd.topic.directory import Directory
from shardd.topic.topic import Topic


def made(directory: Directory, name: str, **config: object) -> Topic:
    topic = Topic(name, directory.new_id(), 1, TopicConfig(**config))  # type: ignore[arg-type]
    directory.show(topic)
    directory.assigned[name] = topic
    return topic


def names(found: tuple[list[Topic], bool]) -> list[str]:
    return [topic.name for topic in found[0]]


def test_ids_are_never_used_twice() -> None:
    directory = Directory()
    assert [directory.new_id(), directory.new_id()] == [1, 2]
    directory.used_id(10)
    directory.used_id(5)
    assert (directory.next_id, directory.new_id()) == (11, 11)


def test_the_sum_of_ids_is_that_of_the_visible_topics() -> None:
    directory = Directory()
    first, second, third = (made(directory, name) for name in "abc")
    directory.hide(second)
    directory.replace(third, Topic("c", third.id, 1, third.config))
    assert directory.id_sum == first.id + third.id == sum(directory.by_id)


def test_names_come_in_order_in_pages_and_those_that_go_leave_no_hole() -> None:
    directory = Directory()
    for name in ("b", "a:2", "c", "a:1"):
        made(directory, name)
    assert names(directory.page("", "", 10)) == ["a:1", "a:2", "b", "c"]
    assert names(directory.page("a:", "a:1", 10)) == ["a:2"]
    assert names(directory.page("", "", 10, ["b", "c"])) == ["b", "c"]
    assert directory.page("", "", 3)[1] is True
    directory.hide(directory.visible["b"])
    assert names(directory.page("", "a:2", 10)) == ["c"]
    assert [topic.name for topic in directory.onwards("", "a:2")] == ["a:2", "c"]
    assert [topic.name for topic in directory.onwards("a:", "gone")] == []


def test_each_name_that_comes_or_goes_is_told() -> None:
    directory = Directory()
    told: list[str] = []
    directory.renamed = told.append
    topic = made(directory, "a")
    directory.hide(topic)
    assert told == ["a", "a"]


def test_a_topic_that_is_hidden_takes_its_records_with_it() -> None:
    directory = Directory()
    topic = Topic("a", directory.new_id(), 1, TopicConfig())
    topic.records.totals.records, topic.records.totals.bytes = 3, 30
    directory.show(topic)
    assert directory.counters()[0] == 1
    directory.hide(topic)
    assert directory.counters() == (0, 0, 0)
    assert directory.graveyard == [topic]


def test_another_object_of_a_topic_takes_its_place_and_is_no_deletion() -> None:
    directory = Directory()
    topic = made(directory, "a")
    other = Topic("a", topic.id, 1, TopicConfig())
    directory.replace(topic, other)
    assert directory.visible["a"] is directory.assigned["a"] is directory.by_id[topic.id] is other
    assert directory.graveyard == []
    assert names(directory.page("", "", 10)) == ["a"]


def test_a_topic_whose_deletion_is_staged_is_read_and_not_changed() -> None:
    directory = Directory()
    topic = made(directory, "a")
    assert directory.changing("a") is topic
    del directory.assigned["a"]
    assert directory.find("a") is topic
    for call in (lambda: directory.changing("a"), lambda: directory.find("none")):
        with pytest.raises(TopicsError) as caught:
            call()
        assert caught.value.code is ErrorCode.TOPIC_NOT_FOUND


def test_topics_are_counted_by_class() -> None:
    directory = Directory()
    made(directory, "a", durability=Durability.FSYNC)
    made(directory, "b", durability=Durability.FSYNC)
    made(directory, "c")
    assert directory.by_class() == {"ephemeral": 0, "memory": 0, "disk": 1, "fsync": 2}
