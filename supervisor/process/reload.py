"""Reload: at SIGHUP, the keys are read and the audit log opened again. A file that cannot be used changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import trio

from supervisor.config.keys import FILE_VARIABLE, Keys, KeysError, read_file
from supervisor.process.audit_file import AuditFile, AuditFileError
from supervisor.process.gateways import Gateways


@dataclass(eq=False)
class Reload:
    keys: Keys
    """Those in effect."""
    audit: AuditFile | None
    gateways: Gateways
    log: Any

    async def read_keys(self) -> str:
        """Read the keys, and have all gateways use them. Returns the result in words."""
        path = self.keys.path
        if path is None:
            self.log.info("nothing_to_reload", reason=f"keys come from {FILE_VARIABLE} to be read again")
            return "nothing to reload"
        try:
            keys = await trio.to_thread.run_sync(read_file, path)
        except KeysError as error:
            self.log.error("keys_not_reloaded", reason=str(error), action="the keys from before stay")
            return "the keys were not reloaded, those from before stay"
        self.keys = Keys(keys, path)
        await self.gateways.use(keys)
        self.log.info("keys_reloaded", keys=len(keys))
        return f"{len(keys)} keys reloaded"

    async def reopen_audit_log(self) -> None:
        if self.audit is None:
            return
        try:
            await trio.to_thread.run_sync(self.audit.reopen)
        except AuditFileError as error:
            self.log.error("audit_log_not_reopened", reason=str(error), action="the file from before is written to")
            return
        await self.gateways.reopen_audit_log()
        self.log.info("audit_log_reopened")
