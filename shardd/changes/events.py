"""What is told of a topic when its changes commit. Who is told is not the affair of whoever changes it."""

from __future__ import annotations

from typing import Protocol

from shardd.topic.topic import Topic


class TopicEvents(Protocol):
    def written(self, topic: Topic) -> None:
        """Records that a client wrote became visible."""

    def copied(self, topic: Topic, head_before: int) -> None:
        """Records that routers copied became visible."""

    def restored(self, topic: Topic) -> None:
        """Copies of an earlier life are back: who copies from them may go on."""

    def jobs_changed(self, topic: Topic) -> None:
        """Jobs of a queue may have become claimable."""

    def deleted(self, topic: Topic) -> None:
        """The topic is gone: whoever waits for it must not go on."""
