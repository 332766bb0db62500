"""Listening socket: the check of its exposure, and the errors when it cannot be opened."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from supervisor.process.listener import (
    ExposedError,
    ListenError,
    addresses,
    check_exposure,
    listen,
    listen_all,
    resolve,
    shown,
    url,
    widest,
)
from tests.support.programs import leave_out


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1.2.3"])
def test_loopback_needs_no_keys(host: str) -> None:
    check_exposure(host, resolve(host, 0)[1], allowed=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.7", "::"])
def test_anything_else_is_refused_unless_allowed(host: str) -> None:
    address = resolve(host, 0)[1]
    with pytest.raises(ExposedError, match="TOPICS_ALLOW_INSECURE_NO_AUTH=1"):
        check_exposure(host, address, allowed=False)
    check_exposure(host, address, allowed=True)


def test_a_used_port_is_refused_with_a_remedy() -> None:
    with listen(*resolve("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        assert url(first) == f"http://127.0.0.1:{port}"
        with pytest.raises(ListenError, match=rf"127.0.0.1 port {port}.*in use.*TOPICS_PORT"):
            listen(*resolve("127.0.0.1", port))


def test_a_host_that_is_none_is_refused() -> None:
    with pytest.raises(ListenError, match="TOPICS_HOST=no such host"):
        resolve("no such host", 0)


def test_ipv6_urls_have_brackets() -> None:
    try:
        listening = listen(*resolve("::1", 0))
    except ListenError:
        leave_out("IPv6")
    with listening:
        assert listening.family == socket.AF_INET6
        assert url(listening).startswith("http://[::1]:")


@contextmanager
def bound(listed: str) -> Iterator[list[socket.socket]]:
    with ExitStack() as closing:
        yield listen_all(addresses(listed, "TOPICS_ROG_LISTEN", allowed=False), "TOPICS_ROG_LISTEN", closing)


def test_several_addresses_are_listened_on_in_their_order() -> None:
    with bound("127.0.0.1:0, localhost:0,127.0.0.2:0") as sockets:
        hosts = [shown(each).rpartition(":")[0] for each in sockets]
        assert (hosts[0], hosts[2]) == ("127.0.0.1", "127.0.0.2")
    with bound("") as sockets:
        assert sockets == []


@pytest.mark.parametrize("bad", ["9091", "localhost", ":9091", "127.0.0.1:port", "127.0.0.1:70000", "127.0.0.1:0,x"])
def test_what_is_no_address_is_refused_by_the_name_of_its_setting(bad: str) -> None:
    with pytest.raises(ListenError, match="TOPICS_ROG_LISTEN="):
        addresses(bad, "TOPICS_ROG_LISTEN", allowed=True)


def test_protocols_without_authentication_stay_on_loopback_unless_allowed() -> None:
    with pytest.raises(ExposedError, match=r"TOPICS_WALRUS_LISTEN=0\.0\.0\.0:0 .*TOPICS_ALLOW_INSECURE_NO_AUTH=1"):
        addresses("127.0.0.1:0,0.0.0.0:0", "TOPICS_WALRUS_LISTEN", allowed=False)
    assert len(addresses("0.0.0.0:0", "TOPICS_WALRUS_LISTEN", allowed=True)) == 1


@pytest.mark.parametrize(
    ("hosts", "where"),
    [
        (["127.0.0.1", "::1", "127.8.0.1"], "this machine"),
        (["::ffff:127.0.0.1"], "this machine"),
        (["127.0.0.1", "0.0.0.0"], "everywhere"),
        (["::"], "everywhere"),
        (["192.0.2.7"], "the network of 192.0.2.7"),
        (["fe80::1%eth0", "127.0.0.1"], "the network of fe80::1"),
        (["192.0.2.7", "127.0.0.1", "0.0.0.0"], "everywhere, the network of 192.0.2.7"),
    ],
)
def test_from_where_listeners_can_be_reached_is_told_of_the_widest(hosts: list[str], where: str) -> None:
    assert widest([(host, 4000) for host in hosts]) == where


def test_when_one_address_cannot_be_had_none_is_kept() -> None:
    with listen(*resolve("127.0.0.1", 0)) as first:
        used = first.getsockname()[1]
        with bound("127.0.0.1:0") as (free,):
            port = free.getsockname()[1]
        with (
            pytest.raises(ListenError, match=rf"port {used}.*another TOPICS_ROG_LISTEN"),
            bound(f"127.0.0.1:{port},127.0.0.1:{used}"),
        ):
            pass
        with bound(f"127.0.0.1:{port}") as again:
            assert len(again) == 1
