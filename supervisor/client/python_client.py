"""The Python client, without what its libraries import just in case: the command of httpx, with rich, and trio.

They are half of the time that it takes to load; the commands run it on asyncio. Modules of commands import this one
before `topics_client`.
"""

from __future__ import annotations

from proto.process.imports import instead

with instead("httpx._main", None), instead("trio", None):
    import httpcore  # noqa: F401 - httpx imports it at its first use

    from topics_client import AsyncClient as AsyncClient
    from topics_client import NotFound as NotFound
    from topics_client import TopicsError as TopicsError
    from topics_client import Unauthorized as Unauthorized
    from topics_client import Unavailable as Unavailable
