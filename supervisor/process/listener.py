"""Listening sockets. The supervisor binds them and the gateway inherits them, so that clients that connect while the
gateway restarts wait in the backlog instead of being refused.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from supervisor.errors import SupervisorError

BACKLOG = 1024


class ListenError(SupervisorError):
    """An address that cannot be listened on. The message says which, why and what to do."""


class ExposedError(SupervisorError):
    """An address that other machines can reach, without authentication."""


def resolve(host: str, port: int, variable: str = "TOPICS_HOST") -> tuple[socket.AddressFamily, Any]:
    """First address of `host` as `(family, sockaddr)`. Raises `ListenError`, which names the `variable`."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ListenError(f"{variable}={host} is no address of this machine: {error}") from error
    family, _, _, _, address = found[0]
    return family, address


def _ip(address: Any) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(str(address[0]).partition("%")[0])


def check_exposure(host: str, address: Any, *, allowed: bool) -> None:
    """Raises `ExposedError` if other machines can reach `address`, unless `allowed`: keys are required, or the operator
    permits access without keys."""
    if not allowed and not _ip(address).is_loopback:
        raise ExposedError(
            f"TOPICS_HOST={host} can be reached from outside and no keys are configured: set TOPICS_API_KEYS, listen "
            "on 127.0.0.1, or set TOPICS_ALLOW_INSECURE_NO_AUTH=1 if every client that can connect may read and write "
            "everything"
        )


def reachable_from(address: Any) -> str:
    """In words, from where a listener at `address` can be reached."""
    host = _ip(address)
    host = getattr(host, "ipv4_mapped", None) or host
    if host.is_loopback:
        return "this machine"
    if host.is_unspecified:
        return "everywhere"
    return f"the network of {host}"


def widest(addresses: Sequence[Any]) -> str:
    """In words, from where any of these listeners can be reached."""
    found = [reachable_from(address) for address in addresses]
    beyond = sorted({each for each in found if each != "this machine"}, key=lambda each: (each[0] != "e", each))
    return ", ".join(beyond) or "this machine"


def listen(family: socket.AddressFamily, address: Any, variable: str = "TOPICS_PORT") -> socket.socket:
    """Bind and listen. Raises `ListenError`, which names the `variable`."""
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
            f"stop the process that uses it, or choose another {variable} (0 takes any free one)"
        ) from error
    return listener


def url(listener: socket.socket) -> str:
    return f"http://{shown(listener)}"


def shown(listener: socket.socket) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


Address = tuple[socket.AddressFamily, Any]


def addresses(listed: str, variable: str, *, allowed: bool) -> list[Address]:
    """Resolve each address of `host:port,...`. Raises `ListenError`. Raises `ExposedError` for an address that other
    machines can reach unless `allowed`, because the protocols besides HTTP have no authentication."""
    found: list[Address] = []
    for address in filter(None, map(str.strip, listed.split(","))):
        host, colon, port = address.rpartition(":")
        if not colon or not host or not (port.isdecimal() and int(port) < 65536):
            raise ListenError(f"{variable}={listed}: {address!r} is not host:port, 127.0.0.1:9091 for example")
        family, resolved = resolve(host.strip("[]"), int(port), variable)
        if not allowed and not _ip(resolved).is_loopback:
            raise ExposedError(
                f"{variable}={address} can be reached from outside, and this protocol has no authentication, even "
                "where HTTP requires keys: listen on 127.0.0.1, or set TOPICS_ALLOW_INSECURE_NO_AUTH=1 if every "
                "client that can connect may read and write every topic"
            )
        found.append((family, resolved))
    return found


def listen_all(wanted: list[Address], variable: str, closing: ExitStack) -> list[socket.socket]:
    """Listen on all addresses; `closing` closes the sockets, also after an error. Raises `ListenError`."""
    return [closing.enter_context(listen(family, address, variable)) for family, address in wanted]
