"""Settings of the service: options of the command line win over `TOPICS_*` variables, those over `topics.toml`.

Owns what is read, once, at start; children are told the limits they need and read nothing themselves. Keys are for
`keys`; whether the data directory and the address can be had is for `datadir` and `listener` to find out.

The file is the one that TOPICS_CONFIG names, else `topics.toml` in the working directory if there is one. It has the
names of the variables without their prefix, in lower case: `port = 4000`.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
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
FILE_VARIABLE = "TOPICS_CONFIG"
DEFAULT_FILE = Path("topics.toml")
URL_VARIABLE = "TOPICS_URL"
TOKEN_VARIABLE = "TOPICS_TOKEN"
"""Which service the commands that ask one talk to, and their key; see `endpoint`. `topics serve` reads neither."""


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
    log_format: Literal["auto", "console", "logfmt", "journal", "json"] = Field(
        "auto", description="form of log lines; auto is console on a terminal, journal under systemd, else logfmt"
    )
    request_log: bool = Field(False, description="a log line for each request and each end of a stream")
    probe_auth: bool = Field(False, description="health and readiness need a key too")
    allow_insecure_no_auth: bool = Field(False, description="listen beyond loopback without keys")
    restart_limit: int = Field(10, ge=0, le=1000, description="deaths of one child within a minute that are borne")
    stop_timeout_ms: int = Field(30_000, ge=1, description="time a shard has to close its files")

    def limits(self) -> dict[str, Any]:
        """The fields of `Limits`, as they travel in `Start.limits`."""
        return {name: getattr(self, name) for name in Limits.model_fields}


@dataclass(frozen=True, slots=True)
class Loaded:
    """`origin` says for each setting where its value is from: "default", the file's path, a variable or an option."""

    settings: Settings
    origin: dict[str, str]


def load(overrides: Mapping[str, Any] | None = None) -> Settings:
    """Read file and environment; entries of `overrides` that are not None win. Raises `SettingsError`."""
    return load_with_origin(overrides).settings


def load_with_origin(overrides: Mapping[str, Any] | None = None) -> Loaded:
    """The same, and where each value is from. Raises `SettingsError`."""
    path, filed = _read_file(os.environ)
    present = {name.lower() for name, value in os.environ.items() if value}
    given = {name: value for name, value in (overrides or {}).items() if value is not None}
    variables = {name for name in Settings.model_fields if PREFIX.lower() + name in present}
    origin = dict.fromkeys(Settings.model_fields, "default")
    origin |= dict.fromkeys(filed, str(path))
    origin |= {name: PREFIX + name.upper() for name in variables}
    origin |= {name: f"--{name.replace('_', '-')}" for name in given}
    below = {name: value for name, value in filed.items() if name not in variables}
    try:
        return Loaded(Settings(**{**below, **given}), origin)
    except ValidationError as error:
        raise SettingsError("\n".join(_explain(item, origin) for item in error.errors())) from error


def _read_file(environment: Mapping[str, str]) -> tuple[Path, dict[str, Any]]:
    """What the file says, every name of it known. Raises `SettingsError`."""
    named = environment.get(FILE_VARIABLE, "")
    path = Path(named) if named else DEFAULT_FILE
    try:
        with open(path, "rb") as file:
            found = tomllib.load(file)
    except FileNotFoundError:
        if named:
            raise SettingsError(f"{FILE_VARIABLE}={named}: there is no such file; create it, or unset it") from None
        return path, {}
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: {error}") from None
    for name in found:
        if PREFIX + name.upper() in (keys.VARIABLE, keys.FILE_VARIABLE):
            raise SettingsError(f"{path}: {name}: keys are given by {keys.FILE_VARIABLE} or {keys.VARIABLE} only")
        if name not in Settings.model_fields:
            like = difflib.get_close_matches(name, Settings.model_fields, 1)
            meant = f"; did you mean {like[0]}?" if like else "; `topics config` lists all"
            raise SettingsError(f"{path}: {name}: there is no such setting{meant}")
    return path, found


def _explain(item: Any, origin: Mapping[str, str]) -> str:
    name = str(item["loc"][0])
    source = origin.get(name, PREFIX + name.upper())
    shown = source if source.startswith((PREFIX, "--")) else f"{source}: {name}"
    known = Settings.model_fields.get(name)
    what = f" ({known.description})" if known is not None and known.description else ""
    return f"{shown}={item['input']}: {item['msg']}{what}"


def unknown_variables(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """`TOPICS_*` variables that mean nothing, each with the known name it resembles or ""."""
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    known |= {FILE_VARIABLE, keys.VARIABLE, keys.FILE_VARIABLE, CONTROL_FD_VARIABLE, PARENT_PID_VARIABLE}
    known |= {URL_VARIABLE, TOKEN_VARIABLE}
    found = [name for name in sorted(environment) if name.upper().startswith(PREFIX) and name.upper() not in known]
    # Compared without the prefix, which would make everything look alike.
    bare = {name.removeprefix(PREFIX): name for name in known}
    close = [difflib.get_close_matches(name.upper().removeprefix(PREFIX), bare, 1) for name in found]
    return [(name, bare[like[0]] if like else "") for name, like in zip(found, close, strict=True)]
