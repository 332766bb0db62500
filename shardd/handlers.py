"""Handlers: which part of a shard does which operation, by the type of a request's options."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial

from proto.ipc import operations
from proto.ipc.message import Reply, Request
from proto.model.errors import topic_not_found
from shardd.assembly import Assembly
from shardd.changes.transactions import Respond
from shardd.checkpoint.checkpoint import Checkpoints
from shardd.inspect import Inspect
from shardd.operations.append import Writes
from shardd.operations.consume import Consume
from shardd.operations.cursors import Cursors
from shardd.operations.deletes import Deletes
from shardd.operations.rog_logs import Logs
from shardd.operations.topics import Topics
from shardd.queues.peek import peek
from shardd.queues.redrive import redrive
from shardd.routers.copy_recovery import position
from shardd.topic.directory import Directory


def at_once(parts: Assembly, checkpoints: Checkpoints) -> dict[type, Callable[[Request, Respond], None]]:
    """The handlers of operations that are answered at once, or after their change."""
    staging, topics, inspect = parts.staging, Topics(parts.staging), Inspect(parts, checkpoints)
    consume, cursors, logs = Consume(staging), Cursors(staging), Logs(staging)
    return {
        operations.Append: Writes(staging, topics, parts.pressure, parts.unsynced).append,
        operations.Configure: topics.configure,
        operations.DeleteTopic: topics.delete,
        operations.DeleteRecords: Deletes(staging, parts.scheduler).delete,
        operations.CursorPut: cursors.put,
        operations.CursorGet: cursors.get,
        operations.CursorDelete: cursors.delete,
        operations.CursorList: cursors.list,
        operations.AllCursors: cursors.list_all,
        operations.Take: consume.take,
        operations.Peek: consume.peek,
        operations.Step: consume.step,
        operations.LogCreate: logs.create,
        operations.LogFind: logs.find,
        **inspect.handlers,
        operations.WatchNames: parts.names.list,
        operations.RouterSource: parts.routing.source,
        operations.RouterPut: parts.routing.put,
        operations.RouterDelete: parts.routing.delete,
        operations.RouterHold: parts.routing.hold,
        operations.RouterGet: parts.routing.get,
        operations.RouterList: parts.routing.list,
        operations.RouterGraph: parts.routing.graph,
        operations.RouterPosition: partial(_position, staging.directory),
        operations.WatchResolve: parts.sessions.resolve,
        operations.SessionMake: parts.sessions.make,
        operations.SessionOpen: parts.sessions.open,
        operations.SessionCount: parts.sessions.count,
        operations.TicketMake: parts.tickets.make,
        operations.TicketUse: parts.tickets.use,
        operations.PeekJobs: partial(peek, parts.leases),
        operations.Redrive: partial(redrive, parts.mover),
        operations.RoomOrder: parts.allowance.order,
        operations.RoomWant: parts.allowance.wanted,
    }


def waiting(parts: Assembly) -> dict[type, Callable[[Request, Hashable, Respond], None]]:
    """The handlers of operations that may park a request. They know its caller."""
    directory, reads, pulls = parts.staging.directory, parts.reads, parts.pulls

    def diff(request: Request[operations.Diff], caller: Hashable, respond: Respond) -> None:
        reads.diff(directory.find(request.topic), request, caller, respond)

    def feed(request: Request[operations.Feed], caller: Hashable, respond: Respond) -> None:
        reads.feed(directory.find(request.topic), request, caller, respond)

    def pull(request: Request[operations.Pull], caller: Hashable, respond: Respond) -> None:
        pulls.pull(directory.visible.get(request.topic), request, caller, respond)

    return {
        operations.Diff: diff,
        operations.Feed: feed,
        operations.Pull: pull,
        operations.NameChanges: parts.names.changes,
        operations.Claim: parts.claims.claim,
        operations.Ack: parts.leases.ack,
        operations.Nack: parts.leases.nack,
        operations.Extend: parts.leases.extend,
        operations.WorkOpen: parts.job_streams.open,
        operations.WorkTake: parts.job_streams.take,
        operations.WorkClose: parts.job_streams.close,
        operations.SessionTake: parts.sessions.take,
        operations.SessionNews: parts.session_streams.listen,
        operations.SessionMove: parts.sessions.move,
        operations.RegistrarPut: parts.registrar.put,
        operations.RegistrarGet: parts.registrar.get,
        operations.RegistrarDelete: parts.registrar.delete,
        operations.RegistrarDeleteTopic: parts.registrar.delete_topic,
    }


def _position(directory: Directory, request: Request[operations.RouterPosition], respond: Respond) -> None:
    """Answer with a topic's position, for the restore of other topics. Options: `epoch`."""
    topic = directory.visible.get(request.topic)
    if topic is None or topic.epoch != request.options.epoch:
        raise topic_not_found(request.topic)
    respond(Reply(request.id, extra=position(topic)))
