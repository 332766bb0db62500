"""The Rog client: answers, refusals, and answers that are cut."""

from __future__ import annotations

import socket
import struct

import pytest

from proto.wire.byte_parser import ProtocolError
from proto.wire.rog import Ack, Create, Fetch, Publish
from supervisor.client.rog_client import RogClient, RogRefused
from tests.unit.supervisor.client.test_walrus_client import serving

SIZE = struct.Struct(">Q")


def answering(*answers: bytes) -> object:
    """Serve the answers, one for each piece that comes."""

    def serve(raw: socket.socket) -> None:
        for answer in answers:
            assert raw.recv(4096)
            raw.sendall(answer)

    return serve


def test_a_success_is_one_byte_and_a_message_follows_a_fetch() -> None:
    message = b"\0\xff\n" * 30_000
    with serving(answering(b"\0", b"\0" + SIZE.pack(len(message)) + message)) as address:  # type: ignore[arg-type]
        client = RogClient(address)
        client.ask(Create("log", 3))
        client.ask(Fetch("log", 0, "group"))
        assert client.sized() == message
        client.close()


def test_a_refusal_has_the_servers_words() -> None:
    text = "no such log: é".encode()
    with serving(answering(b"\1" + SIZE.pack(len(text)) + text)) as address:  # type: ignore[arg-type]
        client = RogClient(address)
        with pytest.raises(RogRefused, match="no such log: é"):
            client.ask(Ack("log", 0, "group"))
        client.close()


@pytest.mark.parametrize("answer", [b"", b"\1", b"\1" + SIZE.pack(9) + b"half"])
def test_an_answer_that_is_cut_is_an_error(answer: bytes) -> None:
    with serving(answering(answer)) as address:  # type: ignore[arg-type]
        client = RogClient(address)
        with pytest.raises(ConnectionError):
            client.ask(Publish("log", 0, b"x"))
        client.close()


def test_a_name_that_cannot_be_sent_is_never_sent() -> None:
    with serving(lambda raw: None) as address:
        client = RogClient(address)
        with pytest.raises(ProtocolError):
            client.ask(Create("x" * 256, 1))
        client.close()
