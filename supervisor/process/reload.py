"""Reload: at SIGHUP, the keys are read and the audit log opened again. A file that cannot be used changes nothing."""

from __future__ import annotations

from typing import Any

import trio

from supervisor.config.keys import FILE_VARIABLE, Keys, KeysError, read_file
from supervisor.process.audit_file import AuditFile, AuditFileError
from supervisor.process.gateways import Gateways


class Reload:
    def __init__(self, keys: Keys, audit: AuditFile | None, gateways: Gateways, log: Any) -> None:
        self.keys = keys
        """Those in effect."""
        self._audit = audit
        self._gateways = gateways
        self._log = log

    async def read_keys(self) -> str:
        """Read the keys, and have all gateways use them. Returns the result in words."""
        path = self.keys.path
        if path is None:
            self._log.info("nothing_to_reload", reason=f"keys come from {FILE_VARIABLE} to be read again")
            return "nothing to reload"
        try:
            keys = await trio.to_thread.run_sync(read_file, path)
        except KeysError as error:
            self._log.error("keys_not_reloaded", reason=str(error), action="the keys from before stay")
            return "the keys were not reloaded, those from before stay"
        self.keys = Keys(keys, path)
        await self._gateways.use(keys)
        self._log.info("keys_reloaded", keys=len(keys))
        return f"{len(keys)} keys reloaded"

    async def reopen_audit_log(self) -> None:
        if self._audit is None:
            return
        try:
            await trio.to_thread.run_sync(self._audit.reopen)
        except AuditFileError as error:
            self._log.error("audit_log_not_reopened", reason=str(error), action="the file from before is written to")
            return
        await self._gateways.reopen_audit_log()
        self._log.info("audit_log_reopened")
