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
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta

from proto.ipc.control import CONTROL_FD_VARIABLE
from proto.model.limits import Limits
from proto.model.memory_shares import default_for
from proto.process.orphan import PARENT_PID_VARIABLE
from supervisor.config import keys, units, variables
from supervisor.config.machine import MAX_GATEWAYS, default_gateways, memory_bytes, usable_cores
from supervisor.config.places import DATA_DIR, DEFAULT_FILE, FILE_VARIABLE, HOST, PORT, PREFIX
from supervisor.errors import SupervisorError

MAX_SHARDS = 64
MAX_NUMBER = 2**63 - 1
"""Greatest number of any setting; what is kept in files and messages has 64 bits."""


class SettingsError(SupervisorError):
    """Invalid settings. The message names each variable, its value and the allowed values."""


_BUCKET = re.compile(r"(s3|gs|az)://[^/\s][^\s]*|file:///[^\s]+")
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?|\[?[0-9A-Fa-f:.]+\]?")
_ORIGIN = re.compile(r"(https?)://([a-z0-9_]([a-z0-9._-]*[a-z0-9_])?|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")


def _listed(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _origin(text: str) -> str:
    """An origin in the form that browsers send. Raises `ValueError`."""
    match = _ORIGIN.fullmatch(text.lower().removesuffix("/"))
    if match is None:
        raise ValueError(f"{text!r} is no origin, scheme://host[:port]; https://app.example for example")
    scheme, host, port = match[1], match[2], match[4] or ""
    return f"{scheme}://{host}{'' if port == {'http': ':80', 'https': ':443'}[scheme] else port}"


class Settings(Limits, frozen=True, kw_only=True):
    """All settings, each with its type, bounds, meaning and default."""

    host: Annotated[str, Meta(description="address to listen on")] = HOST
    port: Annotated[int, Meta(ge=0, le=65535, description="port to listen on, 0 for any free one")] = PORT
    advertise: Annotated[
        str, Meta(description="URL of this machine's service, for standbys to name; empty: host name and port")
    ] = ""
    walrus_listen: Annotated[
        str, Meta(description="host:port[,host:port...] to speak the Walrus protocol on; empty: nowhere")
    ] = ""
    rog_listen: Annotated[
        str, Meta(description="host:port[,host:port...] to speak the Rog protocol on; empty: nowhere")
    ] = ""
    cluster_listen: Annotated[
        str,
        Meta(
            description="host:port to hear the service's other machines on, that of shard 0; the others take the next "
            "ones; port 0: any; empty: nowhere"
        ),
    ] = ""
    data_dir: Annotated[Path, Meta(description="directory that holds everything")] = DATA_DIR
    shards: Annotated[
        int | None,
        Meta(ge=1, le=MAX_SHARDS, description="shard processes, fixed when the data directory is made"),
    ] = None
    gateways: Annotated[
        int | None,
        Meta(
            ge=1,
            le=MAX_GATEWAYS,
            description="gateway processes; unset: 1 below six cores, else one for three cores, at most 16 and one for "
            "each GiB of memory",
        ),
    ] = None
    runtime_dir: Annotated[Path | None, Meta(description="private directory for sockets between the processes")] = None
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="least level that is logged")
    ] = "info"
    log_format: Annotated[
        Literal["auto", "console", "logfmt", "journal", "json"],
        Meta(description="form of log lines; auto is console on a terminal, journal under systemd, else logfmt"),
    ] = "auto"
    request_log: Annotated[bool, Meta(description="a log line for each request and each end of a stream")] = False
    audit_log: Annotated[
        Path | None,
        Meta(description="file that gets a line for each change that needs admin or delete, and for each refusal"),
    ] = None
    probe_auth: Annotated[bool, Meta(description="health and readiness need a key too")] = False
    allow_insecure_no_auth: Annotated[bool, Meta(description="listen beyond loopback without keys")] = False
    allowed_hosts: Annotated[
        str,
        Meta(
            description="names, comma-separated, that requests without keys may give as Host besides this machine's own"
        ),
    ] = ""
    cors_origins: Annotated[
        str,
        Meta(description="origins, comma-separated, of other sites whose pages may use the service; empty: none"),
    ] = ""
    restart_limit: Annotated[
        int, Meta(ge=0, le=1000, description="deaths of one child within a minute before a long pause")
    ] = 10
    hang_timeout_ms: Annotated[
        int,
        Meta(ge=0, description="silence after which a process that serves is killed and started again, 0 for never"),
    ] = 15_000
    stop_timeout_ms: Annotated[int, Meta(ge=1, description="time a shard has to close its files")] = 30_000

    @property
    def host_list(self) -> list[str]:
        return _listed(self.allowed_hosts)

    @property
    def origin_list(self) -> list[str]:
        """Allowed origins in the form that browsers send: lower case, without the scheme's default port."""
        return [*map(_origin, _listed(self.cors_origins))]

    @property
    def gateway_count(self) -> int:
        return self.gateways or default_gateways(usable_cores(), memory_bytes())

    def limits(self) -> Limits:
        """What all processes of the service get."""
        given = {name: getattr(self, name) for name in Limits.__struct_fields__}
        return Limits(**given | {"memory_bytes": self.memory_bytes or default_for(memory_bytes())})


@dataclass(frozen=True, slots=True)
class Setting:
    """What is declared of one setting. `type` is that of a given value; the default may be None."""

    name: str
    type: Any
    default: Any
    meta: Meta

    @property
    def allowed(self) -> str:
        """The bounds or choices in words; "" if there are none."""
        if get_origin(self.type) is Literal:
            return ", ".join(f"`{value}`" for value in get_args(self.type))
        if self.type is bool:
            return "`true`, `false`"
        bounds = (("at least", self.meta.ge), ("at most", self.meta.le))
        return ", ".join(f"{words} {bound}" for words, bound in bounds if bound is not None)

    def read(self, given: Any) -> Any:
        """The value of the setting for what was given, a text or a value of TOML. Raises `ValueError`."""
        value = given
        if isinstance(given, str) and self.type is not str:
            if (read := unit_reader(self.name)) is not None and (found := read(given)) is not None:
                value = found
            elif self.type in (int, float):
                value = _number(given)
            elif self.type is bool:
                value = _BOOLS.get(given.strip().lower(), given)
        if self.type is int and isinstance(value, float) and value.is_integer():
            value = int(value)
        try:
            value = msgspec.convert(value, Annotated[self.type, self.meta], dec_hook=_path)
        except msgspec.ValidationError:
            kind = _KINDS.get(self.type)
            said = f"one of {self.allowed}" if kind is None else ", ".join(filter(None, (kind, self.allowed)))
            raise ValueError(f"must be {said}") from None
        if isinstance(value, int) and value > MAX_NUMBER:
            raise ValueError(f"must be at most {MAX_NUMBER}")
        if (check := _CHECKS.get(self.name)) is not None:
            check(value)
        return value


_KINDS = {int: "a whole number", float: "a number", str: "a text", Path: "a path"}
_BOOLS = dict.fromkeys(("true", "yes", "on", "t", "y", "1"), True) | dict.fromkeys(
    ("false", "no", "off", "f", "n", "0"), False
)


def _number(text: str) -> int | float | str:
    """The number that a text is, or the text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _path(kind: type, value: Any) -> Path:
    if kind is not Path or not isinstance(value, str | Path):
        raise ValueError
    return Path(value)


def _check_hosts(text: str) -> None:
    for each in _listed(text):
        if _HOST.fullmatch(each) is None:
            raise ValueError(f"{each!r} is no host name or address, without a port; topics.example for example")


def _check_bucket(text: str) -> None:
    if text and _BUCKET.fullmatch(text) is None:
        raise ValueError("must be s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///directory")


def _check_origins(text: str) -> None:
    for each in _listed(text):
        _origin(each)


_CHECKS: dict[str, Callable[[str], None]] = {
    "allowed_hosts": _check_hosts,
    "bucket": _check_bucket,
    "cors_origins": _check_origins,
}


def _setting(field: msgspec.structs.FieldInfo) -> Setting:
    kind, meta = get_args(field.type)
    kinds = get_args(kind) if NoneType in get_args(kind) else (kind,)
    return Setting(field.name, kinds[0], field.default, meta)


SETTINGS = {field.name: _setting(field) for field in msgspec.structs.fields(Settings)}
"""All settings by name."""


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
    loaded = inspect(overrides)
    if loaded.problems:
        raise SettingsError("\n".join(loaded.problems))
    return loaded.settings


def inspect(overrides: Mapping[str, Any] | None = None) -> Loaded:
    """As `load`, with the source of each value; errors are in `problems`."""
    path, filed, problems = _read_file(os.environ)
    present = {name.lower(): value for name, value in os.environ.items() if value}
    given = {name: value for name, value in (overrides or {}).items() if value is not None}
    variables = {name for name in SETTINGS if PREFIX.lower() + name in present}
    origin = dict.fromkeys(SETTINGS, "default")
    origin |= dict.fromkeys(filed, str(path))
    origin |= {name: PREFIX + name.upper() for name in variables}
    origin |= {name: f"--{name.replace('_', '-')}" for name in given}
    values: dict[str, Any] = {}
    for name, value in (filed | {name: present[PREFIX.lower() + name] for name in variables} | given).items():
        try:
            values[name] = SETTINGS[name].read(value)
        except ValueError as error:
            problems.append(_explain(SETTINGS[name], origin[name], value, error))
            origin[name] = "default"
    return Loaded(Settings(**values), origin, problems)


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
    for name in found.keys() - SETTINGS.keys():
        if PREFIX + name.upper() in (keys.VARIABLE, keys.FILE_VARIABLE):
            problems.append(f"{path}: {name}: keys are given by {keys.FILE_VARIABLE} or {keys.VARIABLE} only")
        else:
            like = difflib.get_close_matches(name, SETTINGS, 1)
            meant = f"; did you mean {like[0]}?" if like else "; `topics config` lists all"
            problems.append(f"{path}: {name}: there is no such setting{meant}")
    return path, {name: value for name, value in found.items() if name in SETTINGS}, sorted(problems)


def _explain(setting: Setting, source: str, given: Any, error: ValueError) -> str:
    """One line for a wrong value."""
    shown = source if source.startswith((PREFIX, "--")) else f"{source}: {setting.name}"
    return f"{shown}={given}: {error} ({setting.meta.description})"


def unknown_variables(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Unknown `TOPICS_*` variables, each with the known name it resembles, or ""."""
    known = {PREFIX + name.upper() for name in SETTINGS}
    known |= {FILE_VARIABLE, keys.VARIABLE, keys.FILE_VARIABLE, CONTROL_FD_VARIABLE, PARENT_PID_VARIABLE}
    known |= {variables.URL, variables.TOKEN, variables.CONTEXT}
    found = [name for name in sorted(environment) if name.upper().startswith(PREFIX) and name.upper() not in known]
    # Compared without the prefix, which would make everything look alike.
    bare = {name.removeprefix(PREFIX): name for name in known}
    close = [difflib.get_close_matches(name.upper().removeprefix(PREFIX), bare, 1) for name in found]
    return [(name, bare[like[0]] if like else "") for name, like in zip(found, close, strict=True)]
