"""`topics backup` and `topics restore`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from supervisor.backup import backup as backups
from supervisor.backup import restore as restores
from supervisor.cli.own_settings import settings as own_settings
from supervisor.cli.quantities import counted, size, utc
from supervisor.cli.terminal import DataDirOption, JsonOption, Status, bar, complain, fail, say, tell, without_json
from supervisor.config.settings import Settings
from supervisor.process.datadir import DataDirError

UntilOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[TOPIC=]TIME",
        help="Keep records up to this time only, of all topics or of one; may be repeated. 2026-11-21T10:00:00Z, "
        "or ms since 1970.",
    ),
]
UntilSeqOption = Annotated[
    list[str] | None,
    typer.Option(metavar="TOPIC=SEQ", help="Keep a topic's records up to this seq only; may be repeated."),
]
ReserveOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=1 << 40,
        help="How many seqs after its last one a topic does not use again, because readers may have seen them "
        f"after the backup [{restores.RESERVE} for topics that are cut, and for all of a bucket; 0 for others].",
    ),
]


def backup(
    directory: Annotated[
        Path, typer.Argument(metavar="DIRECTORY", help="Directory of backups; each gets a folder named by its time.")
    ],
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Back up the data directory, while the service runs or not. Files unchanged since the last backup are linked.

    Exit status: 0 done, 1 not possible, 2 wrong settings.
    """
    settings = own_settings(data_dir=data_dir)
    try:
        with bar("backing up", of_bytes=True, shown=not as_json) as advance:
            done = backups.backup(settings.data_dir, _cold(settings), directory, advance)
            for found in without_json(done, as_json):
                if found["kind"] == "warning":
                    complain(found["message"])
                elif found["kind"] == "done":
                    tell(f"{found['path']}: {size(found['copied_bytes'])} copied, {size(found['linked_bytes'])} linked")
                elif found["again"]:
                    tell(f"{found['shard']}: a checkpoint came in between, going through it again", err=True)
    except (backups.BackupError, OSError) as error:
        fail(str(error), Status.FAILED)


FromOption = Annotated[
    str | None, typer.Option("--from", metavar="URL", help="Restore from a bucket: s3://…, gs://…, az://… or file:///…")
]


SourceArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="SOURCE", help="A backup, or a directory of backups, from which one is chosen. Not with --from."
    ),
]


def restore(
    source: SourceArgument = None,
    to: Annotated[Path | None, typer.Argument(metavar="DATA_DIR", help="As --data-dir.")] = None,
    data_dir: DataDirOption = None,
    until: UntilOption = None,
    until_seq: UntilSeqOption = None,
    reserve: ReserveOption = None,
    bucket: FromOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a data directory from a backup or a bucket, complete or with topics cut at a time or a seq.

    The data directory must not exist, or must be empty. Of a directory of backups the newest is used, or, with --until,
    the first that began after that time. A bucket gives everything that reached it, and 65536 seqs of each topic stay
    unused unless --reserve says otherwise. `topics verify` checks the result.

    Exit status: 0 done, 1 not possible, 2 wrong settings.
    """
    source, data_dir = _from_and_to(source, to, data_dir, bucket)
    settings = own_settings(data_dir=data_dir)
    try:
        cuts = restores.parse_cuts(until or [], until_seq or [], reserve, of_bucket=bucket is not None)
    except ValueError as error:
        fail(str(error), Status.USAGE)
    cold, limits = _cold(settings), settings.limits()
    if source is not None:
        results = restores.restore(source, settings.data_dir, cold, cuts, limits)
    else:
        results = restores.restore_bucket(str(bucket), settings.data_dir, cold, cuts, limits)
    removed = []
    try:
        with bar("restoring", of_bytes=True, shown=not as_json) as advance:
            for found in results:
                if as_json:
                    say(found)
                if found["kind"] == "progress":
                    advance(found["done"], found["total"])
                elif found["kind"] == "cut":
                    removed.append(found["removed"])
                elif not as_json:
                    _tell(found)
    except (backups.BackupError, DataDirError, OSError) as error:
        fail(str(error), Status.FAILED)
    if not as_json:
        tell(f"{found['backup']} is restored to {found['data_dir']}")
    if cuts and not as_json:
        cut = f"{counted(len(removed), 'topic')}, {counted(sum(removed), 'record')} removed behind the cut"
        tell(f"{cut}, {counted(cuts.reserve, 'seq')} reserved in each")


def _tell(found: dict[str, Any]) -> None:
    if found["kind"] == "shard":
        tell(f"shard {found['shard']}: frames up to {found['frame']}, the last of {utc(found['last_ms'])}")
    elif found["kind"] == "problem":
        complain(found["problem"])


def _from_and_to(
    source: Path | None, to: Path | None, data_dir: Path | None, bucket: str | None
) -> tuple[Path | None, Path | None]:
    """The backup, None for a bucket, and the data directory, which is the only argument beside `--from`."""
    if bucket is None and source is None:
        fail("nothing to restore from: name a backup, or a bucket with --from", Status.USAGE)
    if bucket is not None:
        if source is not None and to is not None:
            fail("--from takes one argument, the data directory", Status.USAGE)
        source, to = None, source or to
    if to is not None and data_dir is not None:
        fail("the data directory is given twice: as an argument and as --data-dir", Status.USAGE)
    return source, to or data_dir


def _cold(settings: Settings) -> Path | None:
    return Path(settings.cold_dir) if settings.cold_dir else None
