"""The `topics` command."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated, Any

import typer

import proto
from proto.process.core_dumps import leave_no_core
from supervisor.backup import offline
from supervisor.cli.backup import backup, restore
from supervisor.cli.config import config
from supervisor.cli.deploy import deploy_files
from supervisor.cli.salvage import salvage
from supervisor.cli.status import status, top
from supervisor.cli.terminal import DataDirOption, JsonOption, Status, bar, complain, fail, say
from supervisor.cli.transfer import export, import_
from supervisor.client import rog_client, walrus_client
from supervisor.config import settings as settings_module
from supervisor.config.keys import KeysError, obtain
from supervisor.process.datadir import DataDirError
from supervisor.process.service import EXIT_USAGE
from supervisor.process.service import serve as serve_until_stopped

app = typer.Typer(
    name="topics",
    help="A persistent event engine: append-only topics behind a JSON-first HTTP API.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(walrus_client.app, name="walrus")
app.add_typer(rog_client.app, name="rog")


def _installed() -> str:
    try:
        return installed_version("topics-server")
    except PackageNotFoundError:
        return proto.__version__


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"topics {_installed()}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A persistent event engine: append-only topics behind a JSON-first HTTP API."""


@app.command()
def serve(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on [TOPICS_HOST; 127.0.0.1].", show_default=False)
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to listen on, 0 for any free one [TOPICS_PORT; 4000].", show_default=False)
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Directory that holds everything [TOPICS_DATA_DIR; ./topics-data].", show_default=False),
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option(
            help="Shard processes; fixed when the data directory is made [TOPICS_SHARDS; one per core, at most 8].",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run the service until SIGTERM or Ctrl-C, then finish the requests in flight and exit 0.

    Everything is configured by TOPICS_* environment variables or topics.toml; these options override both. `topics
    config` prints the settings in effect. Exit status: 0 stopped on request, 1 could not start or gave up, 2 wrong
    settings, 3 data that an operator must repair.
    """
    leave_no_core()
    try:
        settings = settings_module.load({"host": host, "port": port, "data_dir": data_dir, "shards": shards})
        keys = obtain(os.environ)
    except (settings_module.SettingsError, KeysError) as error:
        complain(str(error))
        raise typer.Exit(EXIT_USAGE) from None
    raise typer.Exit(serve_until_stopped(settings, keys, _announce, complain))


@app.command()
def verify(data_dir: DataDirOption = None, as_json: JsonOption = False) -> None:
    """Check every frame, checksum and index of a stopped service. Changes nothing.

    Exit status: 0 sound, 1 problems found or the directory cannot be used, 2 wrong settings.
    """
    with bar("verifying shards", shown=not as_json) as advance:
        for found in _offline("verify", data_dir):
            if as_json and found["kind"] != "exit":
                say(found)
            elif found["kind"] == "report":
                advance(found["done"], found["total"])
                typer.echo(
                    f"{found['shard']}: {found['topics']} topics, {found['records']} records, {found['log_frames']} "
                    f"log frames, {found['segment_frames']} frames in {found['segments']} segments: "
                    + ("PROBLEMS" if found["problems"] else "sound")
                )
                for problem in found["problems"]:
                    complain(problem)
                for note in found["notes"]:
                    typer.echo(f"  {note}")


@app.command()
def reshard(
    shards: Annotated[int, typer.Option(min=1, max=settings_module.MAX_SHARDS, help="New number of shards.")],
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Distribute the topics of a stopped service over another number of shards.

    Needs as much free space as there is data. May be interrupted at any time: the next run starts over or continues.
    Exit status: 0 done, 1 not possible, 2 wrong settings.
    """
    with bar("copying records", shown=not as_json) as advance:
        for found in _offline("reshard", data_dir, shards):
            if as_json and found["kind"] != "exit":
                say(found)
            elif found["kind"] == "progress":
                advance(found["done"], found["total"])
            elif found["kind"] == "done":
                typer.echo(f"done: {found['shards']} shards")
            elif found["kind"] == "error":
                complain(found["message"])


def _offline(command: str, data_dir: Path | None, shards: int | None = None) -> Iterator[dict[str, Any]]:
    """The results of an offline command. Ends the process with status 1 if the command fails."""
    try:
        settings = settings_module.load({"data_dir": data_dir})
    except settings_module.SettingsError as error:
        fail(str(error), Status.USAGE)
    try:
        for found in offline.results(command, settings.data_dir, settings.limits(), shards=shards):
            yield found
            if found["kind"] == "exit" and found["status"]:
                raise typer.Exit(Status.FAILED)
    except DataDirError as error:
        fail(str(error), Status.FAILED)


for command in (config, status, top, backup, restore, salvage, export):
    app.command()(command)
app.command("import")(import_)
app.command("deploy-files")(deploy_files)


@app.command()
def version(as_json: JsonOption = False) -> None:
    """Print the version.

    Exit status: 0 printed, 2 wrong options.
    """
    if as_json:
        say({"version": _installed()})
    else:
        typer.echo(f"topics {_installed()}")


def _announce(line: str) -> None:
    try:
        typer.echo(line)
    except OSError:
        pass  # standard output is closed; the log has the line too


def main() -> None:
    app(prog_name="topics")


if __name__ == "__main__":
    main()
