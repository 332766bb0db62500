"""Settings of the service: `TOPICS_*` variables, over which options of the command line win.

Owns what is read, once, at start; children are told the limits they need and read nothing themselves. Keys are for
`keys`; whether the data directory and the address can be had is for `datadir` and `listener` to find out.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError
from pydantic_settings import SettingsConfigDict

from proto.control import CONTROL_FD_VARIABLE
from proto.limits import Limits
from proto.orphan import PARENT_PID_VARIABLE
from supervisor import keys

PREFIX = "TOPICS_"
MAX_SHARDS = 64


class SettingsError(Exception):
    """Settings that nothing can be started with. The text names each variable, its value and what is allowed."""


class Settings(Limits):
    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", frozen=True, env_ignore_empty=True)

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(4000, ge=0, le=65535, description="port to listen on, 0 for any free one")
    walrus_listen: str = Field(
        "", description="host:port[,host:port...] to speak the Walrus protocol on; empty: nowhere"
    )
    rog_listen: str = Field("", description="host:port[,host:port...] to speak the Rog protocol on; empty: nowhere")
    data_dir: Path = Field(Path("topics-data"), description="directory that holds everything")
    shards: int | None = Field(
        None, ge=1, le=MAX_SHARDS, description="shard processes, fixed when the data directory is made"
    )
    runtime_dir: Path | None = Field(None, description="private directory for sockets between the processes")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level that is logged")
    log_format: Literal["auto", "console", "logfmt", "json"] = Field(
        "auto", description="form of log lines; auto is console on a terminal, else logfmt"
    )
    probe_auth: bool = Field(False, description="health and readiness need a key too")
    allow_insecure_no_auth: bool = Field(False, description="listen beyond loopback without keys")
    restart_limit: int = Field(10, ge=0, le=1000, description="deaths of one child within a minute that are borne")
    stop_timeout_ms: int = Field(30_000, ge=1, description="time a shard has to close its files")

    def limits(self) -> dict[str, Any]:
        """The fields of `Limits`, as they travel in `Start.limits`."""
        return {name: getattr(self, name) for name in Limits.model_fields}


def load(overrides: Mapping[str, Any] | None = None) -> Settings:
    """Read the environment; entries of `overrides` that are not None win. Raises `SettingsError`."""
    given = {name: value for name, value in (overrides or {}).items() if value is not None}
    try:
        return Settings(**given)
    except ValidationError as error:
        raise SettingsError("\n".join(_explain(item, given) for item in error.errors())) from error


def _explain(item: Any, given: Mapping[str, Any]) -> str:
    name = str(item["loc"][0])
    shown = f"--{name.replace('_', '-')}" if name in given else PREFIX + name.upper()
    known = Settings.model_fields.get(name)
    what = f" ({known.description})" if known is not None and known.description else ""
    return f"{shown}={item['input']}: {item['msg']}{what}"


def unknown_variables(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """`TOPICS_*` variables that mean nothing, each with the known name it resembles or ""."""
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    known |= {keys.VARIABLE, keys.FILE_VARIABLE, CONTROL_FD_VARIABLE, PARENT_PID_VARIABLE}
    found = [name for name in sorted(environment) if name.upper().startswith(PREFIX) and name.upper() not in known]
    # Compared without the prefix, which would make everything look alike.
    bare = {name.removeprefix(PREFIX): name for name in known}
    close = [difflib.get_close_matches(name.upper().removeprefix(PREFIX), bare, 1) for name in found]
    return [(name, bare[like[0]] if like else "") for name, like in zip(found, close, strict=True)]
