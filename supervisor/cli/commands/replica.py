"""`topics replica`: looks at the bucket of a service, and asks the service nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from supervisor.backup import offline
from supervisor.cli.own_settings import settings as own_settings
from supervisor.cli.quantities import counted, size, utc
from supervisor.cli.terminal import JsonOption, Status, bar, complain, fail, group, tell, without_json

app = group(
    """Check the copy of a service in a bucket.

    Exit status: 0 sound, 1 problems found or the bucket cannot be read, 2 wrong settings.
    """
)

UrlArgument = Annotated[
    str | None, typer.Argument(metavar="URL", help="s3://…, gs://…, az://… or file:///… [TOPICS_BUCKET]")
]


@app.command()
def verify(url: UrlArgument = None, as_json: JsonOption = False) -> None:
    """Read and check every object of a bucket. Changes nothing.

    Exit status: 0 sound, 1 problems found or the bucket cannot be read, 2 wrong settings.
    """
    with bar("reading the bucket", shown=not as_json) as advance:
        for found in without_json(_results("replica-verify", url), as_json):
            if found["kind"] == "report":
                advance(found["done"], found["total"])
                tell(
                    f"{found['shard']}: {counted(found['parts'], 'part')}, {size(found['part_bytes'])}, "
                    f"{counted(found['manifests'], 'manifest')}, {size(found['checkpoint_bytes'])} of checkpoints: "
                    + ("PROBLEMS" if found["problems"] else "sound")
                )
                complain(*found["problems"])


@app.command()
def status(url: UrlArgument = None, as_json: JsonOption = False) -> None:
    """Show how far the copy in a bucket reaches, from listings and headers.

    Exit status: 0 shown, 1 problems found or the bucket cannot be read, 2 wrong settings.
    """
    for found in without_json(_results("replica-status", url), as_json):
        if found["kind"] == "report":
            term = f"term {found['term']} of {found['holder'] or 'nobody'}"
            ended = ", ended" if found["ended"] else ""
            last = utc(found["last_ms"]) if found["last_ms"] else "no time"
            reach = f"frames up to {found['last_frame']} of {last}"
            objects = f"{counted(found['parts'], 'part')}, {counted(found['manifests'], 'manifest')}"
            tell(f"{found['shard']}: {term}{ended}, {reach} in {objects}")
            complain(*found["problems"])


def _results(command: str, url: str | None) -> Iterator[dict[str, Any]]:
    """The results of a command on a bucket. Ends the process with status 1 if it fails."""
    settings = own_settings(bucket=url)
    if not settings.bucket:
        fail("no bucket is given: name its URL, or set TOPICS_BUCKET", Status.USAGE)
    for found in offline.of_bucket(command, settings.limits(), url=settings.bucket):
        if found["kind"] == "error":
            fail(found["message"], Status.FAILED)
        elif found["kind"] != "exit":
            yield found
        elif found["status"]:
            raise typer.Exit(Status.FAILED)
