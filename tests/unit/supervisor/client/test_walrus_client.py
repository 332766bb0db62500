"""The Walrus client: addresses, answers that are cut, and its shell."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from threading import Thread

import pytest

from supervisor.client.walrus_client import WalrusClient, as_command, connected, received, shell


@contextmanager
def serving(serve: Callable[[socket.socket], None], times: int = 1) -> Iterator[str]:
    """The address of a server that calls `serve` with each of so many connections, one after the other."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            for _ in range(times):
                raw, _ = listener.accept()
                with raw:
                    serve(raw)

        thread = Thread(target=run)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(60)
        assert not thread.is_alive()


def echo(raw: socket.socket) -> None:
    """Answer each command with itself until the client closes its side."""
    while head := raw.recv(4, socket.MSG_WAITALL):
        text = raw.recv(struct.unpack("<I", head)[0], socket.MSG_WAITALL)
        raw.sendall(struct.pack("<I", len(text)) + text)


def once(raw: socket.socket) -> None:
    head = raw.recv(4, socket.MSG_WAITALL)
    text = raw.recv(struct.unpack("<I", head)[0], socket.MSG_WAITALL)
    raw.sendall(struct.pack("<I", len(text)) + text)


def test_an_answer_is_returned_unchanged() -> None:
    with serving(echo) as address:
        client = WalrusClient(address)
        assert client.ask("PUT é  x ") == "PUT é  x "
        assert client.ask("x" * 200_000) == "x" * 200_000
        client.close()


def test_an_answer_that_is_cut_is_an_error() -> None:
    def half(raw: socket.socket) -> None:
        raw.recv(4096)
        raw.sendall(b"\x05\0\0\0abc")

    with serving(half) as address:
        client = WalrusClient(address)
        with pytest.raises(ConnectionError, match="ended the connection"):
            client.ask("GET a")
        client.close()


def test_bytes_that_come_one_by_one_are_put_together() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"abcdef")
        assert received(theirs, 4) == b"abcd"
        assert received(theirs, 0) == b""
        assert received(theirs, 2) == b"ef"


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("host", ("host", 9091)),
        ("host:7", ("host", 7)),
        ("[::1]:7", ("::1", 7)),
        ("[::1]", ("::1", 9091)),
    ],
)
def test_an_address_may_leave_its_port_out(
    address: str, found: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []
    monkeypatch.setattr(socket, "create_connection", lambda where, timeout: asked.append(where))
    connected(address, 9091)
    assert asked == [found]


@pytest.mark.parametrize("wrong", ["host:", "host:port"])
def test_a_port_that_is_no_number_is_an_error(wrong: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        connected(wrong, 9091)


def test_a_verb_may_be_typed_in_lower_case() -> None:
    assert as_command("  put a Some Text ") == "PUT a Some Text"
    assert as_command("metrics") == "METRICS"


def test_a_shell_answers_line_by_line_until_exit() -> None:
    out = StringIO()
    with serving(echo) as address:
        assert shell(address, StringIO("put a x\n\nhelp\nGET a\nexit\nget never\n"), out) == 0
    lines = out.getvalue().splitlines()
    assert [lines[0], lines[-1]] == ["PUT a x", "GET a"]
    assert "register <topic>" in lines[1]


def test_a_shell_connects_again_after_a_loss_and_ends_with_its_input() -> None:
    out = StringIO()
    with serving(once, times=2) as address:
        assert shell(address, StringIO("get a\nget b\nget c\n"), out) == 0
    first, lost, again = out.getvalue().splitlines()
    assert (first, again) == ("GET a", "GET c")
    assert lost.startswith(address)


def test_an_answer_moves_no_cursor() -> None:
    out = StringIO()
    with serving(echo) as address:
        shell(address, StringIO("put a \x1b[2J\n"), out)
    assert "\x1b" not in out.getvalue()
