"""The Python client, without what its libraries import just in case: the command of httpx with rich, trio, and HTTP/2.

They are half of the time that it takes to load; the commands run it on asyncio, with HTTP/1.1. Other modules of this
package import the client from here alone.
"""

from __future__ import annotations

from proto.process.imports import instead

with instead("httpx._main", None), instead("trio", None), instead("h2", None):
    import httpcore  # noqa: F401 - httpx imports it at its first use

    from topics_client import AsyncClient as AsyncClient
    from topics_client import Forbidden as Forbidden
    from topics_client import Gap as Gap
    from topics_client import Job as Job
    from topics_client import Json as Json
    from topics_client import NewRecord as NewRecord
    from topics_client import NotAQueue as NotAQueue
    from topics_client import NotFound as NotFound
    from topics_client import Published as Published
    from topics_client import Record as Record
    from topics_client import TopicDeleted as TopicDeleted
    from topics_client import TopicNotFound as TopicNotFound
    from topics_client import TopicsError as TopicsError
    from topics_client import Unauthorized as Unauthorized
    from topics_client import Unavailable as Unavailable
    from topics_client import Worker as Worker
    from topics_client.connection import segment as segment
    from topics_client.publishing import KEPT_S as KEPT_S
    from topics_client.publishing import Publisher as Publisher
