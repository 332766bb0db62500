"""Machines for tests: network namespaces of this one, joined by cables that a test can pull.

    clients ─┬─ one ─┬─ bucket        each line is a network of its own: 198.18.2.0/24 for clients,
             └─ two ─┘                198.18.1.0/24 for the bucket (addresses that RFC 2544 reserves for tests)

A pulled cable swallows what is sent, as a real one does, and nothing is told of it. The test runs in the namespace
`clients` (`inside`), and so do the threads and processes that it starts there. All namespaces end with the test's
process.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.programs import tool

STORE, FRONT = "198.18.1", "198.18.2"
MIDDLE = {"bucket": STORE, "clients": FRONT}
"""The namespaces in the middle of a network, and its first three bytes. Theirs is the address that ends with 1."""
_CLONE_NEWNET = 0x40000000


class NetworkError(Exception):
    """This user or this kernel makes no namespaces. The text has what was refused."""


class Namespace:
    """A network namespace without a name, which lives as long as its holder."""

    def __init__(self, name: str, stack: ExitStack) -> None:
        self.name = name
        script = "ip link set lo up && echo made && exec cat"
        holder = stack.enter_context(
            subprocess.Popen(
                ["unshare", "--net", "sh", "-c", script],
                stdin=subprocess.PIPE,  # its end ends the holder, however the test's process ends
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"},
            )
        )
        stack.callback(holder.kill)
        assert holder.stdout is not None
        if (said := holder.stdout.readline()) != "made\n":
            raise NetworkError(f"unshare --net: {said.strip() or 'refused'}")
        self.pid = holder.pid
        self.enter = ["nsenter", f"--target={holder.pid}", "--net"]
        """The prefix of a command that is to run on this machine."""

    def ip(self, *arguments: str) -> None:
        command = [*self.enter, tool("ip"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NetworkError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


class Network:
    """The machines `names`, the bucket, and the clients."""

    def __init__(self, names: tuple[str, ...], stack: ExitStack) -> None:
        self.names = names
        self.spaces = {name: Namespace(name, stack) for name in (*MIDDLE, *names)}
        for middle, net in MIDDLE.items():
            space = self.spaces[middle]
            space.ip("link", "add", "switch", "type", "bridge")
            space.ip("addr", "add", f"{net}.1/24", "dev", "switch")
            space.ip("link", "set", "switch", "up")
            for number, name in enumerate(names, 11):
                peer = ["peer", "name", middle, "netns", str(self.spaces[name].pid)]
                space.ip("link", "add", name, "type", "veth", *peer)
                space.ip("link", "set", name, "master", "switch")
                self.spaces[name].ip("addr", "add", f"{net}.{number}/24", "dev", middle)
                self.spaces[name].ip("link", "set", middle, "up")
                space.ip("link", "set", name, "up")

    def address(self, name: str) -> str:
        """The address of a machine in the clients' network."""
        return f"{FRONT}.{self.names.index(name) + 11}"

    def pull(self, name: str, middle: str) -> None:
        """Pull the cable between a machine and the bucket or the clients."""
        self.spaces[middle].ip("link", "set", name, "down")

    def plug(self, name: str, middle: str) -> None:
        self.spaces[middle].ip("link", "set", name, "up")

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Be on a machine: this thread, and threads and processes that it starts from now on."""
        home = Path(f"/proc/self/task/{threading.get_native_id()}/ns/net")
        with open(home) as before, open(f"/proc/{self.spaces[name].pid}/ns/net") as there:
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(before.fileno())


def _enter(descriptor: int) -> None:
    """`os.setns` of Python 3.12."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise NetworkError(f"setns: {os.strerror(number)}")


@contextmanager
def network(*names: str) -> Iterator[Network]:
    """Make machines with these names, a bucket's and the clients'. Raises `NetworkError`."""
    if os.getuid() != 0:
        raise NetworkError("only root makes networks of namespaces")
    with ExitStack() as stack:
        yield Network(names, stack)
