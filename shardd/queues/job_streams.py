"""Job streams: a worker's connection that gets jobs as long as it holds fewer than its `max`.

A gateway has the connection, and asks here for jobs on its behalf (`gateway.streams.job_stream`). A job table counts
the leases that each stream holds. This module knows which asker has which streams.

    opened ──► taking ──┬─► closed      the gateway ends the stream: its jobs are claimable at once
                        ├─► forgotten   the gateway is gone (`proto.ipc.askers`): the same
                        └─► unknown     the shard started again: the leases run out
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any

from proto.api.requests import ClaimRequest
from proto.ipc.message import Reply, Request
from proto.ipc.operations import WorkClose, Worker, WorkOpen, WorkTake
from shardd.changes.transactions import Respond, refuse
from shardd.queues.claims import Claims
from shardd.queues.cohorts import STREAM_WAIT_S, Claimer
from shardd.queues.job_deletion import Saved
from shardd.queues.job_requests import check_claim
from shardd.queues.leases import Leases, LeasesChanged, change_leases
from shardd.storage.change import Timing
from shardd.storage.indivisible import indivisible


class JobStreams:
    def __init__(self, claims: Claims, leases: Leases) -> None:
        self._claims = claims
        self._leases = leases
        self.streams: dict[Hashable, dict[str, str]] = {}
        """For each asker, its streams that have asked for jobs, with their queues."""

    def open(self, request: Request[WorkOpen], caller: Hashable, respond: Respond) -> None:
        """Checks that a stream may begin. Options: `node`, `max`, `lease_ms` (None: the topic's)."""
        self._claim(request)
        self._leases.topic(request)
        respond(Reply(request.id))

    def take(self, request: Request[WorkTake], caller: Hashable, respond: Respond) -> None:
        """Claims jobs for the stream in option `stream`. Waits until there are some and it may hold more, at most
        `cohorts.STREAM_WAIT_S`."""
        self._leases.staging.check_term()
        topic, queue = self._leases.look(request)
        stream = request.options.stream
        asked, key = self._claim(request), (caller, request.id)
        claimer = Claimer(asked.node, asked.max or 1, asked.lease_ms, STREAM_WAIT_S, stream, key, respond)
        self.streams.setdefault(caller, {})[stream] = request.topic
        queue.streams.setdefault(stream, 0)
        self._claims.take(topic, queue, claimer)

    def _claim(self, request: Request[Worker[Any]]) -> ClaimRequest:
        options = request.options
        asked = ClaimRequest(options.node, options.max, options.lease_ms)
        check_claim(asked, self._leases.staging.limits)
        return asked

    def close(self, request: Request[WorkClose], caller: Hashable, respond: Respond) -> None:
        """Ends a stream: the jobs that it holds are claimable at once."""
        stream = request.options.stream
        self.streams.get(caller, {}).pop(stream, None)
        topic, queue = self._leases.look(request)
        staging = self._leases.staging
        now = staging.clock.now_ms()

        def done(timing: Timing) -> None:
            staging.events.jobs_changed(topic)
            respond(Reply(request.id))

        with indivisible:
            held = {seq: queue.jobs[seq] for seq in queue.close_stream(stream)}
            before: Saved = {seq: job.saved() for seq, job in held.items()}
            for seq, job in held.items():
                queue.release(seq, job, now, now)
            failed = partial(refuse, request.id, respond)
            change_leases(LeasesChanged(topic, staging, before, done, failed))

    def left_by(self, caller: Hashable) -> list[Request[WorkClose]]:
        """The requests that close the streams of an asker that is gone."""
        return [Request(0, WorkClose(stream), topic) for stream, topic in self.streams.pop(caller, {}).items()]
