"""`topics routers`: what is appended to one topic is copied to another."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from supervisor.cli import exact
from supervisor.cli.remote import Remote, remote
from supervisor.cli.terminal import group

app = group(
    """Routers: what is appended to one topic is copied to another.

    Exit status: 0 done, 1 refused, 2 wrong options, 3 the service is not reachable.
    """
)
TITLES = {
    "router": "router",
    "source": "from",
    "dest": "to",
    "guarantee": "guarantee",
    "forwarded_total": "copied",
    "waits_for": "waits for",
}
NameArgument = Annotated[str, typer.Argument(metavar="ROUTER")]


@app.command("ls")
@remote()
async def list_routers(
    on: Remote,
    prefix: Annotated[str, typer.Argument(metavar="PREFIX")] = "",
    source: Annotated[str | None, typer.Option("--from", metavar="TOPIC", help="Only those from this topic.")] = None,
    dest: Annotated[str | None, typer.Option("--to", metavar="TOPIC", help="Only those to this topic.")] = None,
) -> None:
    """List routers."""
    rows: list[Any] = list(await on.client.routers(prefix or None, source=source, dest=dest))
    on.print_rows(rows, TITLES)


@app.command()
@remote()
async def show(on: Remote, router: NameArgument) -> None:
    """Show a router with its options, and what it waits for."""
    state: dict[str, Any] = dict(await on.client.router(router))
    state.pop("performance", None)
    on.print(state, *(f"{name + ':':<17}{exact.text(value)}" for name, value in state.items()))


@app.command()
@remote()
async def add(
    on: Remote,
    router: NameArgument,
    source: Annotated[str, typer.Argument(metavar="FROM", help="A topic.")],
    dest: Annotated[str, typer.Argument(metavar="TO", help="A topic; made if there is none.")],
    tag: Annotated[str | None, typer.Option(help="Only records with this tag, or beginning so: 'a:*'.")] = None,
    once: Annotated[bool, typer.Option("--exactly-once", help="A crash repeats no copy.")] = False,
    allow_cycle: Annotated[bool, typer.Option("--allow-cycle", help="Even if copies return to their source.")] = False,
) -> None:
    """Copy what is appended to one topic from now on to another one."""
    config: dict[str, Any] = {"source": source, "dest": dest}
    if tag is not None:
        config["filter"] = ["tag", "Glob", tag] if tag.endswith("*") else tag
    config |= {"guarantee": "exactly_once"} if once else {}
    config |= {"allow_cycle": True} if allow_cycle else {}
    state: dict[str, Any] = dict(await on.client.set_router(router, **config))
    state.pop("performance", None)
    on.print(state, f"{router}: {source} to {dest}, {'made' if state.get('created') else 'there already'}")


@app.command("rm")
@remote()
async def remove(on: Remote, router: NameArgument) -> None:
    """Stop copying, and delete the router."""
    gone = await on.client.delete_router(router)
    on.print({"router": router, "deleted": gone}, f"{router}: {'deleted' if gone else 'is not there'}")
