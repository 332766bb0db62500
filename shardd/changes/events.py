"""Topic events: reports of a topic's committed changes. Operations report them without knowing the listeners."""

from __future__ import annotations

from typing import Protocol

from shardd.topic.topic import Topic


class TopicEvents(Protocol):
    def written(self, topic: Topic) -> None:
        """Records that a client wrote became visible."""

    def copied(self, topic: Topic, head_before: int) -> None:
        """Records that routers copied became visible."""

    def restored(self, topic: Topic) -> None:
        """The copies from before a restart are back: routers may copy from the topic again."""

    def jobs_changed(self, topic: Topic) -> None:
        """Jobs of a queue may have become claimable."""

    def deleted(self, topic: Topic) -> None:
        """The topic was deleted: reads, pulls and claims that wait for it must end."""
