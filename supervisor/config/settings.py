"""Settings of the service: command line options override `TOPICS_*` variables, which override `topics.toml`.

Settings are read once, at start. Children receive the limits they need and read nothing themselves. Keys belong to
`keys`; `datadir` and `listener` check whether the data directory and the address can be used.

The file is the one that TOPICS_CONFIG names, else `topics.toml` in the working directory, if it exists. It has the
names of the variables without their prefix, in lower case: `port = 4000`.

Sizes (`*_bytes`, `*_rate`) and durations (`*_ms`) may have a unit (`units`); a plain number is bytes or milliseconds.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
from pydantic import ConfigDict, Field, ValidationError, ValidationInfo, create_model, field_validator

from proto.ipc.control import CONTROL_FD_VARIABLE
from proto.model.limits import Limits
from proto.model.memory_shares import default_for
from proto.process.orphan import PARENT_PID_VARIABLE
from supervisor.config import keys, units, variables
from supervisor.config.machine import memory_bytes
from supervisor.config.places import DATA_DIR, DEFAULT_FILE, FILE_VARIABLE, HOST, PORT, PREFIX
from supervisor.errors import SupervisorError

MAX_SHARDS = 64


class SettingsError(SupervisorError):
    """Invalid settings. The message names each variable, its value and the allowed values."""


_BUCKET = re.compile(r"(s3|gs|az)://[^/\s][^\s]*|file:///[^\s]+")
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?|\[?[0-9A-Fa-f:.]+\]?")
_ORIGIN = re.compile(r"(https?)://([a-z0-9_]([a-z0-9._-]*[a-z0-9_])?|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")


def _origin(text: str) -> str:
    """An origin in the form that browsers send. Raises `ValueError`."""
    match = _ORIGIN.fullmatch(text.lower().removesuffix("/"))
    if match is None:
        raise ValueError(f"{text!r} is no origin, scheme://host[:port]; https://app.example for example")
    scheme, host, port = match[1], match[2], match[4] or ""
    return f"{scheme}://{host}{'' if port == {'http': ':80', 'https': ':443'}[scheme] else port}"


def _field(limit: msgspec.structs.FieldInfo) -> tuple[Any, Any]:
    """A field of `Limits` as one of pydantic's."""
    kind, meta = get_args(limit.type)
    return kind, Field(limit.default, ge=meta.ge, le=meta.le, description=meta.description)


# Only the schema of `Settings` is built, at its first use.
_LIMITS: dict[str, Any] = {each.name: _field(each) for each in msgspec.structs.fields(Limits)}
_LimitSettings = create_model(
    "_LimitSettings", __config__=ConfigDict(extra="ignore", frozen=True, defer_build=True), **_LIMITS
)


class Settings(_LimitSettings):  # type: ignore[misc, valid-type]
    host: str = Field(HOST, description="address to listen on")
    port: int = Field(PORT, ge=0, le=65535, description="port to listen on, 0 for any free one")
    advertise: str = Field(
        "", description="URL of this machine's service, for standbys to name; empty: host name and port"
    )
    walrus_listen: str = Field(
        "", description="host:port[,host:port...] to speak the Walrus protocol on; empty: nowhere"
    )
    rog_listen: str = Field("", description="host:port[,host:port...] to speak the Rog protocol on; empty: nowhere")
    data_dir: Path = Field(DATA_DIR, description="directory that holds everything")
    shards: int | None = Field(
        None, ge=1, le=MAX_SHARDS, description="shard processes, fixed when the data directory is made"
    )
    runtime_dir: Path | None = Field(None, description="private directory for sockets between the processes")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level that is logged")
    log_format: Literal["auto", "console", "logfmt", "journal", "json"] = Field(
        "auto", description="form of log lines; auto is console on a terminal, journal under systemd, else logfmt"
    )
    request_log: bool = Field(False, description="a log line for each request and each end of a stream")
    audit_log: Path | None = Field(
        None, description="file that gets a line for each change that needs admin or delete, and for each refusal"
    )
    probe_auth: bool = Field(False, description="health and readiness need a key too")
    allow_insecure_no_auth: bool = Field(False, description="listen beyond loopback without keys")
    allowed_hosts: str = Field(
        "", description="names, comma-separated, that requests without keys may give as Host besides this machine's own"
    )
    cors_origins: str = Field(
        "", description="origins, comma-separated, of other sites whose pages may use the service; empty: none"
    )
    restart_limit: int = Field(10, ge=0, le=1000, description="deaths of one child within a minute before a long pause")
    hang_timeout_ms: int = Field(
        15_000, ge=0, description="silence after which a process that serves is killed and started again, 0 for never"
    )
    stop_timeout_ms: int = Field(30_000, ge=1, description="time a shard has to close its files")

    @property
    def host_list(self) -> list[str]:
        return [each.strip() for each in self.allowed_hosts.split(",") if each.strip()]

    @property
    def origin_list(self) -> list[str]:
        """Allowed origins in the form that browsers send: lower case, without the scheme's default port."""
        return [_origin(each.strip()) for each in self.cors_origins.split(",") if each.strip()]

    @field_validator("allowed_hosts")
    @classmethod
    def _check_hosts(cls, text: str) -> str:
        for each in (part.strip() for part in text.split(",")):
            if each and _HOST.fullmatch(each) is None:
                raise ValueError(f"{each!r} is no host name or address, without a port; topics.example for example")
        return text

    @field_validator("bucket", check_fields=False)
    @classmethod
    def _check_bucket(cls, text: str) -> str:
        if text and _BUCKET.fullmatch(text) is None:
            raise ValueError(
                "must be s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///directory"
            )
        return text

    @field_validator("cors_origins")
    @classmethod
    def _check_origins(cls, text: str) -> str:
        for each in (part.strip() for part in text.split(",")):
            if each:
                _origin(each)
        return text

    @field_validator("*", mode="before")
    @classmethod
    def _with_unit(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, str) and (read := unit_reader(str(info.field_name))) is not None:
            found = read(value)
            return value if found is None else found
        return value

    def limits(self) -> Limits:
        """What all processes of the service get."""
        given = {name: getattr(self, name) for name in Limits.__struct_fields__}
        return Limits(**given | {"memory_bytes": self.memory_bytes or default_for(memory_bytes())})


def unit_reader(name: str) -> Callable[[str], int | float | None] | None:
    """The parser for the units of a setting, None if it has no unit."""
    if name.endswith(("_bytes", "_rate")):
        return units.size
    return units.duration_ms if name.endswith("_ms") else None


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings with their sources. `origin` maps each setting to "default", the file's path, a variable or an option.

    `problems` has one text per error; the settings named there have their defaults.
    """

    settings: Settings
    origin: dict[str, str]
    problems: list[str]


def load(overrides: Mapping[str, Any] | None = None) -> Settings:
    """Read file and environment; entries of `overrides` that are not None override both. Raises `SettingsError`."""
    return load_with_origin(overrides).settings


def load_with_origin(overrides: Mapping[str, Any] | None = None) -> Loaded:
    """As `load`, with the source of each value. Raises `SettingsError`."""
    loaded = inspect(overrides)
    if loaded.problems:
        raise SettingsError("\n".join(loaded.problems))
    return loaded


def inspect(overrides: Mapping[str, Any] | None = None) -> Loaded:
    """As `load_with_origin`, but errors are in `problems`. Raises `SettingsError` only if no setting is to blame."""
    path, filed, problems = _read_file(os.environ)
    present = {name.lower(): value for name, value in os.environ.items() if value}
    given = {name: value for name, value in (overrides or {}).items() if value is not None}
    variables = {name for name in Settings.model_fields if PREFIX.lower() + name in present}
    origin = dict.fromkeys(Settings.model_fields, "default")
    origin |= dict.fromkeys(filed, str(path))
    origin |= {name: PREFIX + name.upper() for name in variables}
    origin |= {name: f"--{name.replace('_', '-')}" for name in given}
    texts = filed | {name: present[PREFIX.lower() + name] for name in variables} | given
    values = dict(texts)
    while True:
        try:
            return Loaded(Settings(**values), origin, problems)
        except ValidationError as error:
            problems += [_explain(item, origin, texts) for item in error.errors()]
            wrong = {str(item["loc"][0]) for item in error.errors() if item["loc"]} & Settings.model_fields.keys()
            if not wrong:
                raise SettingsError("\n".join(problems)) from error
            values |= {name: Settings.model_fields[name].get_default() for name in wrong}
            origin |= dict.fromkeys(wrong, "default")


def _read_file(environment: Mapping[str, str]) -> tuple[Path, dict[str, Any], list[str]]:
    """Path of the file, its values by setting, and its errors."""
    named = environment.get(FILE_VARIABLE, "")
    path = Path(named) if named else DEFAULT_FILE
    try:
        with open(path, "rb") as file:
            found = tomllib.load(file)
    except FileNotFoundError:
        missing = f"{FILE_VARIABLE}={named}: there is no such file; create it, or unset it"
        return path, {}, [missing] if named else []
    except (OSError, ValueError) as error:
        return path, {}, [f"{path}: {error}"]
    problems = []
    for name in found.keys() - Settings.model_fields.keys():
        if PREFIX + name.upper() in (keys.VARIABLE, keys.FILE_VARIABLE):
            problems.append(f"{path}: {name}: keys are given by {keys.FILE_VARIABLE} or {keys.VARIABLE} only")
        else:
            like = difflib.get_close_matches(name, Settings.model_fields, 1)
            meant = f"; did you mean {like[0]}?" if like else "; `topics config` lists all"
            problems.append(f"{path}: {name}: there is no such setting{meant}")
    return path, {name: value for name, value in found.items() if name in Settings.model_fields}, sorted(problems)


def _explain(item: Any, origin: Mapping[str, str], texts: Mapping[str, Any]) -> str:
    """One line for one of pydantic's errors, with the value as given, before units were parsed."""
    name = str(item["loc"][0]) if item["loc"] else "settings"
    source = origin.get(name, PREFIX + name.upper())
    shown = source if source.startswith((PREFIX, "--")) else f"{source}: {name}"
    known = Settings.model_fields.get(name)
    what = f" ({known.description})" if known is not None and known.description else ""
    return f"{shown}={texts.get(name, item['input'])}: {item['msg'].removeprefix('Value error, ')}{what}"


def unknown_variables(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Unknown `TOPICS_*` variables, each with the known name it resembles, or ""."""
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    known |= {FILE_VARIABLE, keys.VARIABLE, keys.FILE_VARIABLE, CONTROL_FD_VARIABLE, PARENT_PID_VARIABLE}
    known |= {variables.URL, variables.TOKEN, variables.CONTEXT}
    found = [name for name in sorted(environment) if name.upper().startswith(PREFIX) and name.upper() not in known]
    # Compared without the prefix, which would make everything look alike.
    bare = {name.removeprefix(PREFIX): name for name in known}
    close = [difflib.get_close_matches(name.upper().removeprefix(PREFIX), bare, 1) for name in found]
    return [(name, bare[like[0]] if like else "") for name, like in zip(found, close, strict=True)]
