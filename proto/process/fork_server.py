"""The fork server: a process that has imported what the children run, and forks them.

    python -m proto.process.fork_server FD MODULE…     FD is a socket (SOCK_SEQPACKET) to the supervisor

    supervisor → server    one packet a child: `Fork`, with the descriptors that the child inherits
    child → supervisor     its process id, once the supervisor is its parent
    server → supervisor    or instead the number of the error, negative

A child is forked twice. The process in the middle ends at once, so the kernel hands the child to the supervisor, which
has asked for orphans (PR_SET_CHILD_SUBREAPER): it waits for the child as for one that it forked itself, and the server
may die without harm to any child. The server has one thread and opens nothing, so a fork copies a state that is whole.

Its objects are frozen (`gc.freeze`): no search for garbage writes to the pages that all children share.
"""

from __future__ import annotations

import fcntl
import gc
import os
import socket
import sys
import time
from collections.abc import Sequence
from importlib import import_module

import msgspec
from msgspec import Struct
from setproctitle import setproctitle

from proto.process.core_dumps import leave_no_core
from proto.process.imports import load_structlog
from proto.process.orphan import die_with_parent

MAX_BYTES = 128 << 10
MAX_DESCRIPTORS = 250
"""The kernel passes at most 253 at a time."""
_REPARENTED_S = 0.0001


class Fork(Struct, array_like=True):
    """A child to be made: it runs `run` of `module`, which is one of those that the server has imported."""

    module: str
    title: str
    """The name that `ps` shows."""
    environment: dict[str, str]
    numbers: Sequence[int]
    """The number of each descriptor in the child."""


def main(arguments: Sequence[str]) -> int:
    descriptor, *modules = arguments
    die_with_parent()
    leave_no_core()
    setproctitle("topics: fork server")
    load_structlog()
    for module in modules:
        import_module(module)
    gc.collect()
    gc.freeze()
    child = serve(socket.socket(fileno=int(descriptor)))
    if child is None:
        return 0
    return int(sys.modules[child.module].run() or 0)


def serve(link: socket.socket) -> Fork | None:
    """Fork until the supervisor closes its end. Returns None then; in a child, what it is to run."""
    while True:
        packet, descriptors, _, _ = socket.recv_fds(link, MAX_BYTES, MAX_DESCRIPTORS)
        if not packet:
            return None
        asked = msgspec.msgpack.decode(packet, type=Fork)
        try:
            middle = os.fork()
        except OSError as error:
            link.send(b"%d" % -(error.errno or 1))
        else:
            if middle == 0:
                _hand_over(link)
                link.close()
                _become(asked, descriptors)
                return asked
            status = os.waitstatus_to_exitcode(os.waitpid(middle, 0)[1])
            if status:
                link.send(b"%d" % -abs(status))
        for each in descriptors:
            os.close(each)


def _hand_over(link: socket.socket) -> None:
    """In the process in the middle: fork the child, and end. Returns in the child, once the supervisor is its parent
    and knows it."""
    middle = os.getpid()
    try:
        child = os.fork()
    except OSError as error:
        os._exit(error.errno or 1)
    if child:
        os._exit(0)
    while os.getppid() == middle:
        time.sleep(_REPARENTED_S)
    link.send(b"%d" % os.getpid())


def _become(asked: Fork, descriptors: Sequence[int]) -> None:
    """Take over the child's descriptors, environment and name."""
    above = max(*descriptors, *asked.numbers) + 1  # first out of the way of all the numbers
    moved = []
    for each in descriptors:
        moved.append(fcntl.fcntl(each, fcntl.F_DUPFD, above))
        os.close(each)
    for each, number in zip(moved, asked.numbers, strict=True):
        os.dup2(each, number)
        os.close(each)
    os.environ.clear()
    os.environ.update(asked.environment)
    setproctitle(asked.title)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
