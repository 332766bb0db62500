"""The `topics` command: a table of commands, whose modules are imported when they run."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from supervisor.cli import plain_values
from supervisor.cli.terminal import HELP_OPTIONS

plain_values.install()


class Entry(NamedTuple):
    """A command: where its function or its group is, and the first sentence of its help."""

    module: str
    name: str
    help: str


_HERE = "supervisor.cli.commands"
SECTIONS: dict[str, dict[str, Entry]] = {
    "Records and jobs": {
        "publish": Entry(f"{_HERE}.publish", "publish", "Append records: from arguments, or JSON Lines from a pipe."),
        "read": Entry(f"{_HERE}.read", "read", "Print the records of a topic, to its end."),
        "tail": Entry(f"{_HERE}.read", "tail", "Print the last records of topics; with -f, also those to come."),
        "work": Entry(f"{_HERE}.work", "work", "Run a command for each job of a queue."),
    },
    "Topics": {
        "ls": Entry(f"{_HERE}.topics", "ls", "List topics."),
        "show": Entry(f"{_HERE}.topics", "show", "Show a topic with its configuration, cursors and routers."),
        "create": Entry(f"{_HERE}.topics", "create", "Create a topic, or change the configuration of one."),
        "rm": Entry(f"{_HERE}.topics", "rm", "Delete topics, or some of the records of one."),
        "queues": Entry(f"{_HERE}.queues", "app", "Depths and jobs of queues, and their dead letters."),
        "cursors": Entry(f"{_HERE}.cursors", "app", "Named cursors: positions that the service keeps."),
        "routers": Entry(f"{_HERE}.routers", "app", "Routers: what is appended to one topic is copied to another."),
        "export": Entry(f"{_HERE}.transfer", "export", "Write the records of topics as JSON Lines."),
        "import": Entry(f"{_HERE}.transfer", "import_", "Append the records of a JSON Lines file."),
    },
    "Service": {
        "serve": Entry(f"{_HERE}.serve", "serve", "Run the service."),
        "status": Entry(f"{_HERE}.status", "status", "Show processes, shards, lag, log and disk."),
        "top": Entry(f"{_HERE}.status", "top", "Show the topics that grow fastest."),
        "bench": Entry(f"{_HERE}.bench", "bench", "Measure a small load on a running service."),
        "doctor": Entry(f"{_HERE}.doctor", "doctor", "Check this machine and the service for what often goes wrong."),
        "config": Entry(f"{_HERE}.config", "config", "Print the settings in effect."),
        "keys": Entry(f"{_HERE}.keys", "app", "API keys of a service, in their file."),
        "roll": Entry(f"{_HERE}.own_service", "roll", "Replace the processes that serve connections, one by one."),
        "takeover": Entry(f"{_HERE}.own_service", "takeover", "Have the standby on this machine take over."),
        "leave": Entry(f"{_HERE}.own_service", "leave", "Have other machines take the shards of this one, and end it."),
        "deploy-files": Entry(f"{_HERE}.deploy", "deploy_files", "Write systemd unit, proxies, alerts and dashboard."),
    },
    "Data directory": {
        "backup": Entry(f"{_HERE}.backup", "backup", "Back up the data directory."),
        "restore": Entry(f"{_HERE}.backup", "restore", "Make a data directory from a backup or a bucket."),
        "lake": Entry(f"{_HERE}.lake", "app", "Keep topics as Delta tables, for DuckDB, Polars, pandas and Spark."),
        "replica": Entry(f"{_HERE}.replica", "app", "Check the copy of a service in a bucket."),
        "verify": Entry(f"{_HERE}.offline", "verify", "Check every frame, checksum and index of a stopped service."),
        "reshard": Entry(f"{_HERE}.offline", "reshard", "Distribute the topics over another number of shards."),
        "salvage": Entry(f"{_HERE}.offline", "salvage", "Keep what is intact of a damaged topic."),
    },
    "This command": {
        "context": Entry(f"{_HERE}.context", "app", "Names for services: URL and token of each."),
        "completion": Entry(f"{_HERE}.completion", "completion", "Print a script that makes the shell complete."),
        "version": Entry(f"{_HERE}.version", "version", "Print the version."),
    },
    "Other protocols": {
        "walrus": Entry("supervisor.client.walrus_client", "app", "Talk to a Walrus listener."),
        "rog": Entry("supervisor.client.rog_client", "app", "Talk to a Rog listener."),
    },
}
COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}
MEANT = {
    **dict.fromkeys(("append", "push", "put", "send", "produce", "add", "write", "emit", "pub"), "publish"),
    **dict.fromkeys(("cat", "get", "diff", "fetch", "dump", "consume"), "read"),
    **dict.fromkeys(("watch", "follow", "subscribe", "sub", "listen", "stream"), "tail"),
    **dict.fromkeys(("worker", "workers", "claim", "exec", "process"), "work"),
    **dict.fromkeys(("list", "topics", "dir"), "ls"),
    **dict.fromkeys(("describe", "info", "inspect", "stat", "state"), "show"),
    **dict.fromkeys(("make", "new", "mk", "configure", "set", "update"), "create"),
    **dict.fromkeys(("delete", "del", "remove", "drop", "purge", "truncate"), "rm"),
    **dict.fromkeys(("peek", "redrive", "jobs", "dlq", "dead"), "queues"),
    **dict.fromkeys(("route", "routes", "bridge", "mirror", "copy"), "routers"),
    **dict.fromkeys(("start", "run", "server", "up"), "serve"),
    **dict.fromkeys(("check", "diagnose", "health", "ping"), "doctor"),
    **dict.fromkeys(("benchmark", "perf", "load"), "bench"),
    **dict.fromkeys(("token", "tokens", "auth", "apikey", "apikeys"), "keys"),
    **dict.fromkeys(("use", "login", "profile", "contexts"), "context"),
    **dict.fromkeys(("failover", "promote"), "takeover"),
    **dict.fromkeys(("restart", "rolling"), "roll"),
    **dict.fromkeys(("decommission", "evacuate"), "leave"),
    **dict.fromkeys(("repair", "fix", "recover"), "salvage"),
}
"""Words of other systems, and the command that does it here."""
CLOSE = 0.7
"""How alike a word and a command must be for a suggestion."""


def suggested(word: str) -> str | None:
    """The command that a word that is none was meant to be."""
    return MEANT.get(word.lower()) or next(iter(get_close_matches(word.lower(), COMMANDS, 1, CLOSE)), None)


def load(name: str) -> Any:
    """The command or group `name`, with its options. Imports its module."""
    entry = COMMANDS[name]
    found = getattr(import_module(entry.module), entry.name)
    if isinstance(found, typer.Typer):
        return typer.main.get_command(found)
    alone = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=HELP_OPTIONS)
    alone.command(name)(found)
    return typer.main.get_command(alone)


class Commands(TyperGroup):
    """The commands of the table. Help and completion need no module of theirs."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, entry in COMMANDS.items():
            self.add_command(TyperCommand(name, help=entry.help, rich_markup_mode=None))

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(COMMANDS)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name = args[0]
        if name in COMMANDS:
            return name, load(name), args[1:]
        if not ctx.resilient_parsing and not name.startswith("-"):
            meant = suggested(name)
            ctx.fail(f"There is no command {name!r}." + (f" Did you mean {meant!r}?" if meant else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        widest = max(map(len, COMMANDS))
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), entry.help) for name, entry in section.items()])


app = typer.Typer(
    name="topics",
    cls=Commands,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=HELP_OPTIONS,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from supervisor.cli.commands.version import installed

        typer.echo(f"topics {installed()}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A persistent event engine: append-only topics behind a JSON-first HTTP API.

    Commands that ask a service take the one of --url, of --context, of TOPICS_URL, of the context in use, or else the
    one that runs here. They send the token of --token, of the context, or of TOPICS_TOKEN: an API key of the service.
    If TOPICS_URL is set, TOPICS_TOKEN goes to that service only.
    """


def main() -> None:
    app(prog_name="topics")
