"""The boot of a service: locks the data directory, makes the runtime directory and binds the sockets, then runs the
service, and closes them. `topics serve` calls `serve`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import trio

from proto.process import log
from supervisor.config.keys import Keys
from supervisor.config.settings import Settings, unknown_variables
from supervisor.process import cluster, listener
from supervisor.process.audit_file import AuditFile, AuditFileError
from supervisor.process.child import now_ms
from supervisor.process.datadir import DataDir, DataDirError, Manifest
from supervisor.process.forks import ForkServer
from supervisor.process.launch import environment_for_children
from supervisor.process.notify import Notifier
from supervisor.process.opened import Opened
from supervisor.process.rundir import RuntimeDir, RuntimeDirError
from supervisor.process.service import EXIT_FAILED, EXIT_USAGE, Service

WALRUS_VARIABLE = "TOPICS_WALRUS_LISTEN"
ROG_VARIABLE = "TOPICS_ROG_LISTEN"


def serve(
    settings: Settings,
    keys: Keys,
    announce: Callable[[str], None],
    complain: Callable[[str], None],
    fresh: Manifest | None = None,
) -> int:
    """Open all resources, run the service, close them. Blocks. Returns the exit status.

    `announce` is called with the line that reports readiness, `complain` with the reason if the service cannot start.
    `fresh` describes a data directory that is still to be made.
    """
    with ExitStack() as closing:
        forks = ForkServer(environment_for_children(os.environ))
        closing.callback(forks.stop)
        with suppress(OSError):  # the service tries again
            forks.start()
        try:
            opened = _open(settings, keys, closing, fresh)
        except (listener.ExposedError, listener.ListenError, AuditFileError, DataDirError, RuntimeDirError) as error:
            complain(str(error))
            return EXIT_USAGE if isinstance(error, listener.ExposedError) else EXIT_FAILED
        notifier = Notifier.of(os.environ)
        closing.callback(notifier.close)
        logger = log.configure("supervisor", settings.log_level, log.chosen_format(settings.log_format))
        for name, meant in unknown_variables(os.environ):
            logger.warning("unknown_setting", variable=name, **({"did_you_mean": meant} if meant else {}))
        _log_access(logger, keys, opened)
        _log_start(logger, opened)
        service = Service(settings, keys, opened, forks, notifier, logger, announce)
        return trio.run(service.run)


def _open(settings: Settings, keys: Keys, closing: ExitStack, fresh: Manifest | None) -> Opened:
    """Open all resources. `closing` closes what was opened, also after an error. Raises `ExposedError`, `ListenError`,
    `AuditFileError`, `DataDirError` or `RuntimeDirError`."""
    family, address = listener.resolve(settings.host, settings.port)
    allowed = keys.keys is not None or settings.allow_insecure_no_auth
    listener.check_exposure(settings.host, address, allowed=allowed)
    unguarded = settings.allow_insecure_no_auth
    walrus_at = listener.addresses(settings.walrus_listen, WALRUS_VARIABLE, allowed=unguarded)
    rog_at = listener.addresses(settings.rog_listen, ROG_VARIABLE, allowed=unguarded)
    shards, created_ms = (settings.shards, now_ms()) if fresh is None else (fresh.shards, fresh.created_ms)
    data = DataDir.open(settings.data_dir, shards, created_ms)
    closing.callback(data.close)
    data.check_whole(settings.bucket)
    between = cluster.address(settings, data)
    runtime = RuntimeDir.of(settings.runtime_dir, os.environ, data.path)
    closing.callback(runtime.close)
    listening = closing.enter_context(listener.listen(family, address))
    walrus = listener.listen_all(walrus_at, WALRUS_VARIABLE, closing)
    rog = listener.listen_all(rog_at, ROG_VARIABLE, closing)
    audit = None if settings.audit_log is None else AuditFile(settings.audit_log, settings.gateway_count + 1)
    if audit is not None:
        closing.callback(audit.close)
    return Opened(data, runtime, listening, walrus, rog, between, audit)


def _log_access(logger: Any, keys: Keys, opened: Opened) -> None:
    """Log what clients may do without a key, and from where."""
    if keys.keys is None:
        logger.warning(
            "no_authentication",
            meaning="EVERY CLIENT MAY READ, WRITE AND DELETE EVERYTHING",
            reachable_from=listener.widest([each.getsockname() for each in opened.sockets]),
        )
        return
    logger.info(
        "authentication",
        keys=len(keys.keys),
        reachable_from=listener.reachable_from(opened.listening.getsockname()),
    )
    for name, sockets in (("Walrus", opened.walrus), ("Rog", opened.rog)):
        if sockets:
            logger.warning(
                "protocol_without_keys",
                protocol=name,
                meaning="this protocol requires no key",
                reachable_from=listener.widest([each.getsockname() for each in sockets]),
            )
    if keys.path is not None and keys.path.stat().st_mode & 0o007:
        logger.warning("keys_readable_by_others", path=str(keys.path), remedy=f"chmod o= {keys.path}")


def _log_start(logger: Any, opened: Opened) -> None:
    walrus, rog = opened.walrus, opened.rog
    logger.info(
        "starting",
        python=sys.version.split()[0],
        shards=opened.data.shards,
        data_dir=str(opened.data.path),
        runtime_dir=str(opened.runtime.path),
        url=listener.url(opened.listening),
        **({"walrus": ",".join(map(listener.shown, walrus))} if walrus else {}),
        **({"rog": ",".join(map(listener.shown, rog))} if rog else {}),
    )
