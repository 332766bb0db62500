"""Rog client, and the command `topics rog`. Works with any server of the protocol.

Exit status: 0 done, 1 the server refused or is not reachable, 2 wrong usage.
"""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from proto.model.visible import visible
from proto.wire import rog
from proto.wire.byte_parser import ProtocolError
from proto.wire.rog import Ack, Command, Create, Fetch, Publish
from supervisor.client.walrus_client import TIMEOUT_S, connected, received
from supervisor.errors import SupervisorError

DEFAULT_ADDRESS = "127.0.0.1:7878"

app = typer.Typer(
    help="Talk to a Rog listener.", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)
Log = Annotated[str, typer.Option("--log-name", "-l", help="Name of the log.")]
Partition = Annotated[int, typer.Option("--partition", "-p", min=0, max=255, help="Number of the partition, from 0.")]
Group = Annotated[str, typer.Option("--group", "-g", help="Name of the consumer group.")]


class RogRefused(SupervisorError):
    """The server returned an error; the text is its message."""


class RogClient:
    """One connection. Methods block. They raise OSError, `RogRefused`, and `ProtocolError` for names that cannot be
    sent."""

    def __init__(self, address: str = DEFAULT_ADDRESS, timeout_s: float = TIMEOUT_S) -> None:
        self._raw = connected(address, 7878, timeout_s)

    def ask(self, command: Command) -> None:
        self._raw.sendall(rog.encode(command))
        if received(self._raw, 1) != rog.SUCCESS:
            raise RogRefused(self.sized().decode())

    def sized(self) -> bytes:
        (size,) = rog.SIZE.unpack(received(self._raw, rog.SIZE.size))
        return received(self._raw, size)

    def close(self) -> None:
        self._raw.close()


@app.callback()
def _rog(
    context: typer.Context,
    address: Annotated[str, typer.Option("--address", "-a", help="host:port of the server.")] = DEFAULT_ADDRESS,
) -> None:
    context.obj = address


@app.command("create-log")
def create_log(
    context: typer.Context,
    name: Annotated[str, typer.Option("--name", "-n", help="Name of the log.")],
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=0, max=255, help="Number of partitions.")] = 1,
) -> None:
    """Create a log."""
    _once(context.obj, Create(name, partitions))


@app.command()
def publish(
    context: typer.Context,
    log_name: Log,
    partition: Partition = 0,
    data: Annotated[str | None, typer.Option("--data", "-d", help="The message.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="A file that holds the message, - for stdin.")
    ] = None,
) -> None:
    """Append a message."""
    if (data is None) == (file is None):
        raise typer.BadParameter("give either --data or --file")
    if data is not None:
        message = data.encode()
    else:
        assert file is not None
        message = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    _once(context.obj, Publish(log_name, partition, message))


@app.command()
def fetch(context: typer.Context, log_name: Log, group: Group, partition: Partition = 0) -> None:
    """Print the next message of a group, unchanged, without advancing the group."""
    _once(context.obj, Fetch(log_name, partition, group))


@app.command()
def ack(context: typer.Context, log_name: Log, group: Group, partition: Partition = 0) -> None:
    """Advance a group by one message."""
    _once(context.obj, Ack(log_name, partition, group))


def _once(address: str, command: Command) -> None:
    try:
        with closing(RogClient(address)) as client:
            client.ask(command)
            if isinstance(command, Fetch):
                message = client.sized()
                if sys.stdout.isatty():
                    typer.echo(visible(message.decode(errors="replace")))
                else:
                    sys.stdout.buffer.write(message)
                    sys.stdout.buffer.flush()
    except (OSError, ValueError, RogRefused, ProtocolError) as error:
        typer.echo(visible(f"topics: {error}"), err=True)
        raise typer.Exit(1) from None
