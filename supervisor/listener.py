"""The listening socket. The supervisor binds it and lends it to the gateway, so that clients who connect while a
gateway restarts wait in the queue instead of being refused.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from typing import Any

BACKLOG = 1024


class ListenError(Exception):
    """An address that cannot be listened on. The text says which, why and what to do."""


class ExposedError(Exception):
    """An address that others can reach, without anything to keep them out."""


def resolve(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    """First address of `host` as `(family, sockaddr)`. Raises `ListenError`."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ListenError(f"TOPICS_HOST={host} is no address of this machine: {error}") from error
    family, _, _, _, address = found[0]
    return family, address


def check_exposure(host: str, address: Any, *, allowed: bool) -> bool:
    """Whether others can reach `address`; raises `ExposedError` unless `allowed`: keys are asked for, or the operator
    wants it without."""
    exposed = not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback
    if exposed and not allowed:
        raise ExposedError(
            f"TOPICS_HOST={host} can be reached from outside and there are no keys to keep anybody out: set "
            "TOPICS_API_KEYS, listen on 127.0.0.1, or set TOPICS_ALLOW_INSECURE_NO_AUTH=1 if whoever can connect may "
            "read and write everything"
        )
    return exposed


def listen(family: socket.AddressFamily, address: Any) -> socket.socket:
    """Raises `ListenError`."""
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ListenError(
            f"cannot listen on {address[0]} port {address[1]}: {os.strerror(error.errno or 0)}: "
            "stop whoever uses it, or choose another TOPICS_PORT (0 takes any free one)"
        ) from error
    return listener


def url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
