"""Values of options as typer reads them, without pydantic, which is a fifth of the time that a command takes to start.

typer validates each value through pydantic, and imports it for that. A value that is plainly right does not need it:

    none given                         None, or () for a list
    a flag                             itself
    text                               itself
    a whole number within its bounds   the number
    one of the choices                 itself
    an option with a parser            what the parser returns
    a path without conditions          the path, if it can be read or nothing is there

Any other value is left to typer, so that every message about a wrong one is typer's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer.core

LONGEST = 18
"""Digits of numbers that are read here."""
_NONE: Any = object()


def install() -> None:
    """Take the place of the function by which typer chooses how to read a parameter. A typer without that function
    stays as it is, and starts slower."""
    of_typer: Any = typer.core
    chosen = getattr(of_typer, "build_runtime_param", None)
    if chosen is not None and not isinstance(chosen, partial):
        of_typer.build_runtime_param = partial(PlainParam, chosen)


class PlainParam:
    """How the values of one parameter are read: plain ones here, and the others in typer's own way."""

    def __init__(self, otherwise: Callable[[Any], Any], descriptor: Any) -> None:
        self._descriptor = descriptor
        self._info = descriptor.parameter_info
        self._otherwise = otherwise

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        found = self._several(value) if several else self._one(self._descriptor.annotation, value)
        return self._otherwise(self._descriptor).coerce(value, param=param, ctx=ctx) if found is _NONE else found

    def _several(self, value: Any) -> Any:
        kind = self._descriptor.annotation
        if get_origin(kind) is not list or not isinstance(value, list | tuple):
            return _NONE
        found = [self._one(get_args(kind)[0], each) for each in value]
        return _NONE if any(each is _NONE for each in found) else found

    def _one(self, kind: Any, value: Any) -> Any:
        """The value as one of its kind; `_NONE` if it is not plain."""
        if self._info.parser is not None:
            try:
                return self._info.parser(value)
            except ValueError:
                return _NONE
        if kind is str:
            return value if isinstance(value, str) and _encodes(value) else _NONE
        if kind is int:
            return self._number(value)
        if kind is bool:
            return value if isinstance(value, bool) else _NONE
        if kind is Path:
            return self._path(value)
        if get_origin(kind) is Literal:
            return value if isinstance(value, str) and value in get_args(kind) else _NONE
        return _NONE

    def _path(self, value: Any) -> Any:
        info = self._info
        conditions = info.exists or info.writable or info.resolve_path or info.allow_dash or info.path_type
        if conditions or not (info.file_okay and info.dir_okay) or not isinstance(value, str) or not _encodes(value):
            return _NONE
        if "\0" in value:
            return _NONE
        return Path(value) if os.access(value, os.R_OK) or not os.path.lexists(value) else _NONE

    def _number(self, value: Any) -> Any:
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= LONGEST:
            value = int(value)
        if type(value) is not int or self._info.clamp:
            return _NONE
        least, most = self._info.min, self._info.max
        return value if (least is None or value >= least) and (most is None or value <= most) else _NONE


def _encodes(text: str) -> bool:
    """Whether a text has no lone surrogates, which stand for bytes of the command line that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
