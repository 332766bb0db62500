"""Claims about a thousand streams that have ended: they leave nothing behind."""

from __future__ import annotations

import os
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.events import watch, write
from tests.support.inside import descriptors
from tests.support.service import Service, until
from tests.support.websocket import UPGRADE

KIB = 1024
CONNECTS = 1000
MOST_GROWTH_BYTES = 4096 * KIB


def visit(service: Service, number: int, wid: str) -> None:
    """Connect, wait for the first bytes, and leave: some clients close, some reset the connection."""
    extra = "".join(f"{name}: {value}\r\n" for name, value in UPGRADE.items()) if number % 2 else ""
    path = "/v0/ws" if number % 2 else f"/v0/watch/{wid}"
    with socket.create_connection(("127.0.0.1", service.port), 20) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{extra}\r\n".encode())
        assert client.recv(4096)[9:12] == (b"101" if number % 2 else b"200")
        if number % 3 == 0:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def visits(service: Service, wids: list[str], times: int) -> None:
    """Make that many visits, with one client for each session."""

    def client(first: int) -> None:
        for number in range(first, times, len(wids)):
            visit(service, number, wids[first])

    with ThreadPoolExecutor(len(wids)) as threads:
        list(threads.map(client, range(len(wids))))


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_open_files_and_memory_are_back_where_they_were(service: Service) -> None:
    write(service, "a", *range(100))
    wids = [watch(service, topics={"a": {}}) for _ in range(10)]
    pid = int(service.child("gateway")["pid"])
    idle = descriptors(pid)
    visits(service, wids, CONNECTS)  # so that caches are filled before memory is measured
    until(lambda: descriptors(pid) <= idle, "the files to be closed")
    before = resident_bytes(pid)
    visits(service, wids, CONNECTS)
    until(lambda: descriptors(pid) <= idle, "the files to be closed")
    until(lambda: resident_bytes(pid) - before < MOST_GROWTH_BYTES, "the memory to be given back")
    assert service.request("GET", "/v0/health")[0] == 200
