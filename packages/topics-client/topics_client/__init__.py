"""Client of topics, a persistent event engine: publish, read, tail and work, with asyncio, trio or blocking code."""

from topics_client.blocking import Client as Client
from topics_client.client import AsyncClient as AsyncClient
from topics_client.errors import *  # noqa: F403 - the class of each code
from topics_client.items import Gap as Gap
from topics_client.items import Job as Job
from topics_client.items import Json as Json
from topics_client.items import NewRecord as NewRecord
from topics_client.items import Published as Published
from topics_client.items import Record as Record
from topics_client.items import TopicDeleted as TopicDeleted
from topics_client.payloads import from_json as from_json
from topics_client.payloads import to_json as to_json
from topics_client.working import Work as Work
from topics_client.working import Worker as Worker
from topics_client.working import worker as worker
