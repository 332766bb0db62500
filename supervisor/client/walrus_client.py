"""Walrus client, and the command `topics walrus`: one command, or a shell with one command per line.

Works with any server of the protocol. Exit status: 0 answered, 1 the server answered ERR or is not reachable, 2 wrong
usage.
"""

from __future__ import annotations

import socket
import sys
from contextlib import closing
from typing import Annotated, TextIO

import typer

from proto.model.visible import visible
from proto.wire import walrus

DEFAULT_ADDRESS = "127.0.0.1:9091"
TIMEOUT_S = 30.0
_HELP = "register <topic> | put <topic> <payload> | get <topic> | state <topic> | metrics | exit"

app = typer.Typer(
    help="Talk to a Walrus listener; without a command, a shell.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
AddressOption = Annotated[str, typer.Option("--addr", help="host:port of any node.")]


def connected(address: str, default_port: int, timeout_s: float = TIMEOUT_S) -> socket.socket:
    """Connect to `host:port` or `[host]:port`; blocks. Raises OSError, ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, port = address, str(default_port)
    return socket.create_connection((host.strip("[]"), int(port)), timeout_s)


def received(raw: socket.socket, size: int) -> bytes:
    """Receive exactly `size` bytes; blocks. Raises `ConnectionError` if the server closes the connection before."""
    pieces: list[bytes] = []
    while size:
        data = raw.recv(min(size, 1 << 16))
        if not data:
            raise ConnectionError("the server ended the connection")
        pieces.append(data)
        size -= len(data)
    return b"".join(pieces)


class WalrusClient:
    """One connection. A command without an answer may have been executed; the protocol has no idempotency."""

    def __init__(self, address: str = DEFAULT_ADDRESS, timeout_s: float = TIMEOUT_S) -> None:
        self._raw = connected(address, 9091, timeout_s)

    def ask(self, command: str) -> str:
        """Send a command and return its answer unchanged; blocks. Raises OSError."""
        self._raw.sendall(walrus.encode(command.encode()))
        (size,) = walrus.LENGTH.unpack(received(self._raw, walrus.LENGTH.size))
        return received(self._raw, size).decode()

    def close(self) -> None:
        self._raw.close()


def as_command(line: str) -> str:
    """A typed line as a command, with its verb in upper case."""
    verb, space, rest = line.strip().partition(" ")
    return verb.upper() + space + rest


@app.callback()
def _walrus(context: typer.Context, addr: AddressOption = DEFAULT_ADDRESS) -> None:
    context.obj = addr
    if context.invoked_subcommand is None:
        raise typer.Exit(shell(addr, sys.stdin, sys.stdout))


@app.command()
def register(context: typer.Context, topic: str) -> None:
    """Create a topic if it does not exist."""
    _once(context.obj, f"REGISTER {topic}")


@app.command()
def put(context: typer.Context, topic: str, payload: str) -> None:
    """Append an entry."""
    _once(context.obj, f"PUT {topic} {payload}")


@app.command()
def get(context: typer.Context, topic: str) -> None:
    """Take the next entry."""
    _once(context.obj, f"GET {topic}")


@app.command()
def state(context: typer.Context, topic: str) -> None:
    """Segments of a topic and their leaders."""
    _once(context.obj, f"STATE {topic}")


@app.command()
def metrics(context: typer.Context) -> None:
    """State of the cluster."""
    _once(context.obj, "METRICS")


def _once(address: str, command: str) -> None:
    try:
        with closing(WalrusClient(address)) as client:
            answer = client.ask(command)
    except (OSError, ValueError) as error:
        typer.echo(visible(f"topics: {address}: {error}"), err=True)
        raise typer.Exit(1) from None
    typer.echo(visible(answer))
    if answer.startswith("ERR"):
        raise typer.Exit(1)


def shell(address: str, lines: TextIO, out: TextIO) -> int:
    """Read commands until `exit` or end of file. Returns the exit status. Reopens a lost connection."""
    client: WalrusClient | None = None
    prompt = "walrus> " if lines.isatty() else ""
    while True:
        out.write(prompt)
        out.flush()
        line = lines.readline()
        if not line or line.strip().lower() in ("exit", "quit"):
            if client is not None:
                client.close()
            return 0
        if not line.strip():
            continue
        if line.strip().lower() == "help":
            out.write(_HELP + "\n")
            continue
        try:
            client = client or WalrusClient(address)
            out.write(visible(client.ask(as_command(line))) + "\n")
        except (OSError, ValueError) as error:
            out.write(visible(f"{address}: {error}") + "\n")
            if client is not None:
                client.close()
            client = None
