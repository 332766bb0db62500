"""What streams and WebSockets carry, for the AsyncAPI document.

The service puts its frames together from bytes; tests hold them against these Structs.

Events of `text/event-stream` have their name beside the data. Messages of a WebSocket have it in them, as `op`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from msgspec import UNSET, Raw, Struct, UnsetType

from proto.api.answers import Appended, ClaimedJob, Performance, RecordHead, WatchedTopic
from proto.api.requests import AppendRequest, WatchRequest
from proto.model.errors import STATUS
from proto.model.fields import U64, Name, about

_Topic = Annotated[Name, about("the topic", examples=["jobs"])]
_Head = Annotated[U64, about("seq of the newest record", examples=[480104])]
_Topics = Annotated[list[Name] | UnsetType, about("the topics that it is about", examples=[["jobs"]])]
_RetryAfter = Annotated[U64 | UnsetType, about("ms after which the service tries again", examples=[1500])]
_Id = Annotated[Raw | UnsetType, about("any JSON up to 1024 bytes; the answer has it, too", examples=["p1"])]
_Ignored = Annotated[
    list[str] | UnsetType, about("fields of the command that the service does not know, at any level of it; at most 10")
]


class StreamedRecord(RecordHead):
    """A record of a stream, which may leave out more than a diff does."""

    data: Annotated[
        Raw | UnsetType,
        about(
            "any JSON, as it was appended; absent if `include_data` is false",
            examples=[{"type": "resize", "url": "s3://b/x.png"}],
        ),
    ] = UNSET
    meta: Annotated[
        Raw | UnsetType,
        about("as it was appended, if asked for and there is one", type="object", examples=[{"trace": "z9"}]),
    ] = UNSET


class RecordFrame(Struct):
    """Records of one topic, in the order of their seqs."""

    topic: _Topic
    records: list[StreamedRecord]
    from_seq: Annotated[U64, about("the records are after this seq", examples=[480100])]
    to_seq: Annotated[U64, about("the position behind them", examples=[480104])]
    head_seq: _Head


class TombstoneFrame(Struct):
    """Records that the reader missed. They are gone."""

    topic: _Topic
    reason: Annotated[
        str,
        about("why", enum=["cap", "ttl", "mixed", "recreated", "source_trim", "from_seq_too_old"], examples=["cap"]),
    ]
    gap_from: Annotated[U64, about("first missed seq, inclusive", examples=[479001])]
    gap_to: Annotated[U64, about("last missed seq, inclusive", examples=[480000])]
    earliest_seq: Annotated[U64, about("seq of the oldest record still there", examples=[480001])]
    head_seq: _Head
    cause: Annotated[str | UnsetType, about("more about the reason, for some reasons")] = UNSET


class CaughtUpFrame(Struct):
    """The topic's records were all sent; from here on they come as they are written."""

    topic: _Topic
    head_seq: _Head


class TopicDeletedFrame(Struct):
    """The topic was deleted. The stream continues with its other topics."""

    topic: _Topic
    head_seq: _Head
    reason: Annotated[str, about("deleted", examples=["deleted"])]


class ErrorFrame(Struct):
    """An error. With code 429 it is advice, and the stream continues. With any other code the stream ends, unless the
    frame names topics: then these end. 410 means that the watch session is gone."""

    code: Annotated[int, about("as an HTTP status", examples=[429])]
    error: Annotated[str, about("text for people", examples=["the shard is busy"])]
    retry_after_ms: _RetryAfter = UNSET
    topics: _Topics = UNSET


class JobFrame(ClaimedJob, kw_only=True):
    """A job that is leased to the worker."""

    topic: _Topic


# WebSocket: commands


class SubscribeCommand(WatchRequest, tag_field="op", tag="subscribe", kw_only=True):
    """Stream a topic, with `from_seq` and `tail`, or several ones, with `topics`, and those of a `prefix`."""

    SCHEMA: ClassVar[dict[str, Any]] = {
        "anyOf": [{"required": ["topic"]}, {"required": ["topics"]}, {"required": ["prefix"]}],
        "not": {"required": ["topic", "topics"]},
    }

    request_id: _Id = UNSET
    topic: Annotated[Name | None, about("the topic")] = None
    from_seq: Annotated[U64 | None, about("the records after this seq", default=0)] = None
    tail: Annotated[bool | None, about("only records that are not there yet", default=False)] = None
    lenient: Annotated[bool | None, about("leave topics out that do not exist", default=False)] = None


class UnsubscribeCommand(Struct, tag_field="op", tag="unsubscribe", kw_only=True):
    """Stream a topic, several ones, or those of a prefix no more."""

    SCHEMA: ClassVar[dict[str, Any]] = {
        "oneOf": [{"required": ["topic"]}, {"required": ["topics"]}, {"required": ["prefix"]}]
    }

    request_id: _Id = UNSET
    topic: Annotated[Name | None, about("the topic", examples=["jobs"])] = None
    topics: Annotated[list[Name] | None, about("the topics")] = None
    prefix: Annotated[str | None, about("an addition to the contract: the prefix that was subscribed")] = None


class PublishCommand(AppendRequest, tag_field="op", tag="publish", kw_only=True):
    """Append records, all or none."""

    request_id: _Id = UNSET
    topic: _Topic
    return_seqs: Annotated[bool | None, about("whether the answer lists every seq", default=True)] = None


class PingCommand(Struct, tag_field="op", tag="ping", kw_only=True):
    """Ask for a sign of life."""

    request_id: _Id = UNSET


class AuthCommand(Struct, tag_field="op", tag="auth", kw_only=True):
    """Send a key: first of all and within 5 s, where none came with the upgrade."""

    request_id: _Id = UNSET
    token: Annotated[str, about("the key", examples=["s3cret"])]


# WebSocket: answers and frames


class SubscribedAnswer(Struct, tag_field="op", tag="subscribed", kw_only=True):
    """The frames of the topics follow."""

    request_id: _Id = UNSET
    topics: Annotated[
        dict[str, WatchedTopic],
        about(
            "where each topic is, by name",
            examples=[{"jobs": {"from_seq": 480100, "head_seq": 480104, "earliest_seq": 480001}}],
        ),
    ]
    ignored: _Ignored = UNSET


class UnsubscribedAnswer(Struct, tag_field="op", tag="unsubscribed", kw_only=True):
    """No frame of these topics follows."""

    request_id: _Id = UNSET
    topics: Annotated[list[Name], about("those that were subscribed", examples=[["jobs"]])]
    ignored: _Ignored = UNSET


class AckAnswer(Appended, tag_field="op", tag="ack", kw_only=True):
    """The records are appended."""

    request_id: _Id = UNSET
    performance: Performance
    ignored: _Ignored = UNSET


class PongAnswer(Struct, tag_field="op", tag="pong", kw_only=True):
    """The sign of life."""

    request_id: _Id = UNSET
    ignored: _Ignored = UNSET


class AuthenticatedAnswer(Struct, tag_field="op", tag="authenticated", kw_only=True):
    """The key is known."""

    request_id: _Id = UNSET
    ignored: _Ignored = UNSET


class ErrorAnswerMessage(Struct, tag_field="op", tag="error", kw_only=True):
    """A command failed, and the socket stays open. Without a `request_id` it is about the stream."""

    request_id: _Id = UNSET
    code: Annotated[str, about("stable word to branch on", enum=sorted(code.value for code in STATUS))]
    message: Annotated[str, about("text for people", examples=['topic "jobs" does not exist'])]
    detail: Annotated[dict[str, Any] | UnsetType, about("facts about the error", examples=[{"topic": "jobs"}])] = UNSET
    retry_after_ms: _RetryAfter = UNSET
    topics: _Topics = UNSET


class RecordMessage(RecordFrame, tag_field="op", tag="record"):
    """Records of one topic, in the order of their seqs."""


class TombstoneMessage(TombstoneFrame, tag_field="op", tag="tombstone"):
    """Records that the reader missed. They are gone."""


class CaughtUpMessage(CaughtUpFrame, tag_field="op", tag="caught_up"):
    """The topic's records were all sent; from here on they come as they are written."""


class TopicDeletedMessage(TopicDeletedFrame, tag_field="op", tag="topic_deleted"):
    """The topic was deleted. The socket continues with its other topics."""
