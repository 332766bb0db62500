"""Notifier: reports the state of the service to systemd. sd_notify protocol: one datagram of `KEY=value` lines."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress

VARIABLE = "NOTIFY_SOCKET"


class Notifier:
    """Sends to the socket that systemd names; does nothing without one. Never raises or blocks on sending, because a
    failed notification must not disturb the service."""

    def __init__(self, address: str) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket: socket.socket | None = None
        if address.startswith(("@", "/")):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Notifier:
        return cls(environment.get(VARIABLE, ""))

    def _send(self, **fields: str) -> None:
        if self._socket is None:
            return
        lines = "\n".join(f"{name}={value}".replace("\n", " ") for name, value in fields.items())
        with suppress(OSError):
            self._socket.sendto(lines.encode(), self._address)

    def ready(self, status: str) -> None:
        self._send(READY="1", STATUS=status, MAINPID=str(os.getpid()))

    def status(self, status: str) -> None:
        self._send(STATUS=status)

    def watchdog(self) -> None:
        """Report that the service is alive; to be sent more often than the service manager's watchdog interval."""
        self._send(WATCHDOG="1")

    def reloading(self) -> None:
        """Report the start of a reload; the caller must send `ready` afterwards, whatever the result."""
        self._send(RELOADING="1", MONOTONIC_USEC=str(time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000))

    def busy(self, status: str, more_s: int) -> None:
        """Report that the service still starts or stops; asks the service manager to wait `more_s` seconds from now."""
        self._send(STATUS=status, EXTEND_TIMEOUT_USEC=str(more_s * 1_000_000))

    def stopping(self, status: str) -> None:
        self._send(STOPPING="1", STATUS=status)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
