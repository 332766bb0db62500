"""What every answer must be, and the stories of those that are not."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import structlog

from proto.model.errors import STATUS, ErrorCode

_EXCEPTION = re.compile(r"^[ |]*[\w.]+(Error|Exception|Group|Gone)\b")
MOST_SHOWN = 8
MOST_CHARS = 400
_KNOWN = {code.value: status for code, status in STATUS.items()}
BUSY = {ErrorCode.NOT_READY.value, ErrorCode.SHUTTING_DOWN.value}


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def strict_json(raw: bytes) -> Any:
    """The value of a JSON text, with nothing that JSON has not. Raises ValueError."""
    return json.loads(raw.decode(), parse_constant=_not_json)


def problem_of_error(content: Any, status: int | None = None) -> str:
    """What is wrong with a canonical error; "" for nothing."""
    if not isinstance(content, dict) or not isinstance(content.get("code"), str) or not content.get("message"):
        return "the error has no code or no message"
    code = content["code"]
    if code not in _KNOWN:
        return f"the code {code!r} is not known"
    if status is not None and _KNOWN[code] != status:
        return f"the code {code!r} belongs to status {_KNOWN[code]}"
    return ""


def problem_of_answer(status: int, headers: dict[str, str], raw: bytes, *, streamed: bool = False) -> str:
    """What is wrong with an answer of the API; "" for nothing. `streamed`: a success has no JSON."""
    try:
        body = gzip.decompress(raw) if headers.get("content-encoding") == "gzip" and raw else raw
        if streamed and status < 400:
            return ""
        if not headers.get("content-type", "").startswith("application/json"):
            return f"the content is {headers.get('content-type')!r}"
        content = strict_json(body)
    except (ValueError, EOFError, OSError) as error:
        return f"the body cannot be read: {error!r}"
    if status < 400:
        return ""
    if not isinstance(content, dict) or not set(content) <= {"error", "performance"}:
        return "the body is not that of an error"
    problem = problem_of_error(content.get("error"), status)
    if problem:
        return problem
    if status >= 500 and content["error"]["code"] not in BUSY:
        return "a client's input has ended in a 5xx"
    return ""


@dataclass
class Judge:
    """Collects the stories of a run. `title` is what a story needs to be told again: the seed."""

    title: str
    tried: int = 0
    stories: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    """Errors that the code under test logged or raised, with their tracebacks."""
    statuses: dict[int, int] = field(default_factory=dict)

    def tell(self, what: str, sent: Any, answer: Any = "") -> None:
        lines = [what, f"sent:   {shown(sent)}"]
        if answer != "":
            lines.append(f"answer: {shown(answer)}")
        self.stories.append("\n        ".join(lines))

    def end(self) -> None:
        """Fail with the first stories and the first logged errors, if there are any."""
        logged = {_cause(entry): entry for entry in reversed(self.log)}
        shown = [*self.stories[:MOST_SHOWN], *list(reversed(logged.values()))[:MOST_SHOWN]]
        assert not shown, (
            f"{self.title}: {len(self.stories)} of {self.tried} inputs, {len(self.log)} errors were logged\n\n"
            + "\n\n".join(shown)
        )


def _cause(entry: str) -> str:
    """The line of a traceback that names its exception, which is the same for all of one kind."""
    named = [line for line in entry.splitlines() if _EXCEPTION.search(line)]
    return re.sub(r"0x\w+|\d+", "", named[-1]) if named else entry


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MOST_CHARS else f"{text[: MOST_CHARS // 2]} … {text[-MOST_CHARS // 2 :]} ({len(text)})"


@contextmanager
def logs_into(judge: Judge) -> Iterator[None]:
    """Give the judge every error that is logged meanwhile, with its traceback: an input may cause none."""

    def keep(_: Any, level: str, event: MutableMapping[str, Any]) -> NoReturn:
        if level in ("error", "critical"):
            event = structlog.processors.format_exc_info(_, level, event)
            judge.log.append("\n        ".join(f"{name}: {value}" for name, value in event.items()))
        raise structlog.DropEvent

    before = structlog.get_config()["processors"]
    structlog.configure(processors=[structlog.processors.ExceptionRenderer(), keep])
    try:
        yield
    finally:
        structlog.configure(processors=before)
