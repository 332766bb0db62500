"""`topics serve`. Loaded without the other commands, because its start waits for what it loads."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from proto.process.core_dumps import leave_no_core
from supervisor.cli import plain_values
from supervisor.cli.terminal import HELP_OPTIONS, complain, tell
from supervisor.config import settings as settings_module
from supervisor.config.keys import KeysError, obtain
from supervisor.process.boot import serve as serve_until_stopped
from supervisor.process.datadir import MANIFEST
from supervisor.process.service import EXIT_FAILED, EXIT_USAGE


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on [TOPICS_HOST; 127.0.0.1].")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on, 0 for any free one [TOPICS_PORT; 4000].")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Directory that holds everything [TOPICS_DATA_DIR; ./topics-data].")
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option(
            help="Shard processes; fixed when the data directory is made [TOPICS_SHARDS; one per core, at most 8]."
        ),
    ] = None,
) -> None:
    """Run the service until SIGTERM or Ctrl-C, then finish the requests in flight and exit 0.

    Everything is configured by TOPICS_* environment variables or topics.toml; these options override both. `topics
    config` prints the settings in effect. Exit status: 0 stopped on request, 1 could not start or gave up, 2 wrong
    settings, 3 data that an operator must repair.
    """
    leave_no_core()
    os.umask(0o077)  # also for what libraries write: the objects of a bucket that is a directory
    try:
        settings = settings_module.load({"host": host, "port": port, "data_dir": data_dir, "shards": shards})
        keys = obtain(os.environ)
    except (settings_module.SettingsError, KeysError) as error:
        complain(*str(error).split("\n"))
        raise typer.Exit(EXIT_USAGE) from None
    fresh = None
    if settings.bucket and not (settings.data_dir / MANIFEST).exists():
        from supervisor.backup.join import JoinError, join

        try:
            fresh = join(settings)
        except JoinError as error:
            complain(str(error))
            raise typer.Exit(EXIT_FAILED) from None
    raise typer.Exit(serve_until_stopped(settings, keys, _announce, complain, fresh))


def _announce(line: str) -> None:
    with suppress(OSError):  # standard output is closed; the log has the line too
        tell(line)


plain_values.install()
alone = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, context_settings=HELP_OPTIONS)
alone.command()(serve)
