"""The AsyncAPI document of a service: the event streams and the WebSocket, made from the Structs of their frames.

An operation says `send` for what the service sends, and `receive` for what it gets.
"""

from __future__ import annotations

from functools import cache

import msgspec
from msgspec import Struct

from gateway.contract.json_schemas import REF, Schema, example, of_service, of_structs
from gateway.contract.openapi import PATH_PARAMETERS, WAYS
from gateway.contract.operations import OPERATIONS
from gateway.streams.states import STREAM, SUBSCRIPTION
from proto import __version__
from proto.api import frames
from proto.model.limits import Limits

WATCH: dict[str, type[Struct]] = {
    "record": frames.RecordFrame,
    "tombstone": frames.TombstoneFrame,
    "caught-up": frames.CaughtUpFrame,
    "topic-deleted": frames.TopicDeletedFrame,
    "error": frames.ErrorFrame,
}
"""The events of a watch, by name."""
WORK: dict[str, type[Struct]] = {"job": frames.JobFrame, "error": frames.ErrorFrame}
"""The events of a stream of jobs, by name."""
COMMANDS: dict[type[Struct], type[Struct]] = {
    frames.SubscribeCommand: frames.SubscribedAnswer,
    frames.UnsubscribeCommand: frames.UnsubscribedAnswer,
    frames.PublishCommand: frames.AckAnswer,
    frames.PingCommand: frames.PongAnswer,
    frames.AuthCommand: frames.AuthenticatedAnswer,
}
"""The commands of a WebSocket, and the answer to each. Any of them may be answered with an error."""
FRAMES: tuple[type[Struct], ...] = (
    frames.RecordMessage,
    frames.TombstoneMessage,
    frames.CaughtUpMessage,
    frames.TopicDeletedMessage,
)
"""Messages of a WebSocket beside the answers."""
_FAILED = frames.ErrorAnswerMessage
_SUMMARY = {operation.name: operation.summary for operation in OPERATIONS}


def op_of(kind: type[Struct]) -> str:
    """The `op` of a message of the WebSocket."""
    return str(kind.__struct_config__.tag)


def _event(name: str, kind: type[Struct], ident: str) -> Schema:
    headers: Schema = {"event": {"const": name, "description": "the field `event` of the frame"}}
    if name != "error":
        headers["id"] = {"type": "string", "description": ident}
    return {
        **_message(name, kind),
        "headers": {"type": "object", "properties": headers, "required": ["event"]},
    }


def _message(name: str, kind: type[Struct]) -> Schema:
    return {
        "name": name,
        "title": name,
        "summary": " ".join((kind.__doc__ or "").split()),
        "contentType": "application/json",
        "payload": {"$ref": REF.format(name=kind.__name__)},
    }


def _channel(address: str, title: str, text: str, messages: dict[str, Schema], query: Schema | None) -> Schema:
    names = [part.strip("{}") for part in address.split("/") if part.startswith("{")]
    channel: Schema = {"address": address, "title": title, "description": text, "messages": messages}
    if names:
        channel["parameters"] = {name: {"description": PATH_PARAMETERS[name][0]} for name in names}
    if query is not None:
        channel["bindings"] = {"ws": {"method": "GET", "query": query}}
    return channel


def _operation(action: str, channel: str, summary: str, messages: list[str], *, keys: bool) -> Schema:
    ways = [way for way in WAYS if keys and not (channel == "websocket" and way == "token")]
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{channel}"},
        "summary": summary,
        "messages": [{"$ref": f"#/channels/{channel}/messages/{name}"} for name in messages],
        "security": [{"$ref": f"#/components/securitySchemes/{way}"} for way in ways],
    }


def _channels(*, keys: bool) -> Schema:
    position = "where the stream is in all its topics; sent back as `Last-Event-ID`"
    socket: list[type[Struct]] = [*COMMANDS, *COMMANDS.values(), _FAILED, *FRAMES]
    ticket = {"type": "object", "properties": {"ticket": {"type": "string", "description": "of POST /v0/tickets"}}}
    return {
        "watch": _channel(
            "/v0/watch/{wid}",
            "Watch",
            "Events of a watch session, which POST /v0/watch makes, as `text/event-stream`. A comment comes after each "
            "silence of `heartbeat_ms`. A client that connects again continues where the session was.",
            {name: _event(name, kind, position) for name, kind in WATCH.items()},
            None,
        ),
        "work": _channel(
            "/v0/topics/{topic}/work",
            "Jobs",
            "Jobs of a queue as `text/event-stream`, as long as the worker holds fewer than `max`. The worker acks "
            "them with POST /v0/topics/{topic}/ack. When the stream ends, its jobs can be claimed by others.",
            {name: _event(name, kind, "seq of the job") for name, kind in WORK.items()},
            None,
        ),
        "websocket": _channel(
            "/v0/ws",
            "WebSocket",
            "Commands and frames, a JSON object in each text message. Commands are carried out one at a time, in "
            "order, and each is answered. There is no session: a client that connects again subscribes behind its last "
            "`to_seq`.",
            {op_of(kind): _message(op_of(kind), kind) for kind in socket},
            ticket if keys else None,
        ),
    }


def _operations(*, keys: bool) -> Schema:
    found = {
        "watch_stream": _operation("send", "watch", _SUMMARY["watch_stream"], list(WATCH), keys=keys),
        "work": _operation("send", "work", _SUMMARY["work"], list(WORK), keys=keys),
        "stream": _operation(
            "send", "websocket", "What comes of the subscribed topics", [*map(op_of, FRAMES), op_of(_FAILED)], keys=keys
        ),
    }
    for command, answer in COMMANDS.items():
        text = " ".join((command.__doc__ or "").split())
        found[op_of(command)] = {
            **_operation("receive", "websocket", text, [op_of(command)], keys=keys),
            "reply": {
                "channel": {"$ref": "#/channels/websocket"},
                "messages": [{"$ref": f"#/channels/websocket/messages/{op_of(kind)}"} for kind in (answer, _FAILED)],
            },
        }
    return found


def document(limits: Limits, *, keys: bool = True) -> Schema:
    """The document of a service. `keys`: it has keys."""
    answered: set[type[Struct]] = {*WATCH.values(), *WORK.values(), *COMMANDS.values(), *FRAMES, _FAILED}
    schemas = of_structs(answered, COMMANDS)
    channels = _channels(keys=keys)
    for channel in channels.values():
        for message in channel["messages"].values():
            message["examples"] = [{"payload": example(message["payload"], schemas)}]
    components: Schema = {"schemas": dict(sorted(schemas.items()))}
    if keys:
        components["securitySchemes"] = {
            name: {"type": "httpApiKey", "name": way["name"], "in": way["in"], "description": way["description"]}
            if way["type"] == "apiKey"
            else way
            for name, way in WAYS.items()
        }
    whole = {
        "asyncapi": "3.0.0",
        "info": {
            "title": "topics",
            "version": __version__,
            "description": "The streams of a persistent event engine. /v0/openapi.json has its requests.",
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {
            protocol: {
                "host": "{host}",
                "protocol": protocol,
                "description": text,
                "variables": {"host": {"default": "127.0.0.1:4000", "description": "where this document is"}},
            }
            for protocol, text in (("http", "event streams"), ("ws", "the WebSocket"))
        },
        "channels": channels,
        "operations": _operations(keys=keys),
        "components": components,
        "x-states": {
            "description": "What becomes of a stream, and of each topic of it: state, event, next state",
            "stream": STREAM,
            "subscription": SUBSCRIPTION,
        },
    }
    for name, channel in channels.items():
        protocol = "ws" if name == "websocket" else "http"
        channel["servers"] = [{"$ref": f"#/servers/{protocol}"}]
    found: Schema = of_service(msgspec.to_builtins(whole), limits)
    return found


@cache
def rendered(limits: Limits, *, keys: bool) -> bytes:
    return msgspec.json.encode(document(limits, keys=keys))
