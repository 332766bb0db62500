"""The listening socket: who may reach it, and what is said when it cannot be had."""

from __future__ import annotations

import socket

import pytest

from supervisor.listener import ExposedError, ListenError, check_exposure, listen, resolve, url


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1.2.3"])
def test_loopback_needs_no_keys(host: str) -> None:
    assert check_exposure(host, resolve(host, 0)[1], allowed=False) is False


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.7", "::"])
def test_anything_else_is_refused_unless_allowed(host: str) -> None:
    address = resolve(host, 0)[1]
    with pytest.raises(ExposedError, match="TOPICS_ALLOW_INSECURE_NO_AUTH=1"):
        check_exposure(host, address, allowed=False)
    assert check_exposure(host, address, allowed=True) is True


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
        pytest.skip("no IPv6 here")
    with listening:
        assert listening.family == socket.AF_INET6
        assert url(listening).startswith("http://[::1]:")
