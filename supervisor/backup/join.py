"""Join: what the data directory of a standby is to be made for, if there is none yet: the service in the bucket."""

from __future__ import annotations

from typing import Any

from supervisor.backup import offline
from supervisor.errors import SupervisorError
from supervisor.process.child import now_ms
from supervisor.process.datadir import Manifest, default_shards


class JoinError(SupervisorError):
    """The bucket cannot be read, or holds something else. The message says what to do."""


def join(settings: Any) -> Manifest:
    """The service that the bucket holds. If it holds none, it holds this one from now on. Blocks. Raises
    `JoinError`."""
    shards = settings.shards or default_shards()
    problem = "the bucket was not read"
    for found in offline.of_bucket("join", settings.limits(), url=settings.bucket, shards=shards, created_ms=now_ms()):
        if found["kind"] == "error":
            problem = found["message"]
        elif found["kind"] == "service":
            if settings.shards not in (None, found["shards"]):
                raise JoinError(
                    f"TOPICS_SHARDS={settings.shards}, but {settings.bucket} holds a service with {found['shards']} "
                    "shards: leave TOPICS_SHARDS unset, or use another prefix"
                )
            return Manifest(found["shards"], found["created_ms"])
    raise JoinError(problem)
