"""Test clients of Walrus and Rog, written from the protocols' descriptions; they share no code with the server."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from typing import Any

from tests.support.service import Service


class MinimalWalrus:
    """The minimal client of the Walrus document: one `recv` for a length, one for a text, nothing else."""

    def __init__(self, host: str = "127.0.0.1", port: int = 9091) -> None:
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.sock.settimeout(20)
        self.sock.connect((host, port))

    def send(self, command: str) -> str:
        data = command.encode("utf-8")
        length = struct.pack("<I", len(data))
        self.sock.sendall(length + data)
        resp_len = struct.unpack("<I", self.sock.recv(4))[0]
        return self.sock.recv(resp_len).decode("utf-8")

    def register(self, topic: str) -> str:
        return self.send(f"REGISTER {topic}")

    def put(self, topic: str, data: str) -> str:
        return self.send(f"PUT {topic} {data}")

    def get(self, topic: str) -> str | None:
        resp = self.send(f"GET {topic}")
        if resp == "EMPTY":
            return None
        return resp[3:]

    def close(self) -> None:
        self.sock.close()


class Wire:
    """A connection of bytes."""

    def __init__(self, port: int, timeout_s: float = 20) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout_s)

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.sock.recv(size - len(data))
            if not piece:
                raise ConnectionError(f"ended after {len(data)} of {size} bytes")
            data += piece
        return data

    def ended(self) -> bool:
        """Whether the server ended the connection without another byte."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.sock.close()


class WalrusWire(Wire):
    def frame(self) -> str:
        (size,) = struct.unpack("<I", self.exactly(4))
        return self.exactly(size).decode()

    def ask(self, command: str | bytes) -> str:
        self.send(framed(command))
        return self.frame()


class RogWire(Wire):
    """`wide` sends group sizes as u64, else as one byte."""

    def __init__(self, port: int, *, wide: bool = False) -> None:
        super().__init__(port)
        self.wide = wide

    def _group(self, group: str) -> bytes:
        raw = group.encode()
        return (struct.pack(">Q", len(raw)) if self.wide else bytes([len(raw)])) + raw

    @staticmethod
    def _log(code: int, number: int, log: str) -> bytes:
        return bytes([code, number, len(log.encode())]) + log.encode()

    def _sized(self) -> bytes:
        (size,) = struct.unpack(">Q", self.exactly(8))
        return self.exactly(size)

    def _status(self) -> str:
        """ "" for success, else the error's text."""
        return "" if self.exactly(1) == b"\0" else self._sized().decode()

    def create(self, log: str, partitions: int) -> str:
        self.send(self._log(0, partitions, log))
        return self._status()

    def publish(self, log: str, partition: int, data: bytes) -> str:
        self.send(self._log(1, partition, log) + struct.pack(">Q", len(data)) + data)
        return self._status()

    def fetch(self, log: str, partition: int, group: str) -> bytes | str:
        """The message as bytes, or the error as str."""
        self.send(self._log(2, partition, log) + self._group(group))
        return self._status() or self._sized()

    def ack(self, log: str, partition: int, group: str) -> str:
        self.send(self._log(3, partition, log) + self._group(group))
        return self._status()


def framed(command: str | bytes) -> bytes:
    raw = command.encode() if isinstance(command, str) else command
    return struct.pack("<I", len(raw)) + raw


def ports(service: Service, protocol: str) -> list[int]:
    return [int(address.rpartition(":")[2]) for address in service.status()[protocol]]


@contextlib.contextmanager
def opened(make: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
    connection = make(*arguments, **options)
    try:
        yield connection
    finally:
        connection.close()
