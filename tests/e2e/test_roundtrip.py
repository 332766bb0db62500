"""Claims about JSON records: they come back as the same text, also after all processes were killed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings

from tests.support.service import Service

SPACE = st.sampled_from(["", "", "", " ", "\n", "\t \r\n"])
TEXT = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters='"\\'), max_size=12).map(
    lambda text: "".join(c for c in text if c >= " ")
)
ESCAPES = st.sampled_from(
    ["\\n", "\\/", "\\u00e9", "\\u0000", "\\ud83d\\ude00", "\\ud800", "\\uDEAD", '\\"', "\\\\", "\\b"]
)
STRING = st.lists(st.one_of(TEXT, ESCAPES), max_size=3).map(lambda parts: '"' + "".join(parts) + '"')
KEY = st.one_of(STRING, st.sampled_from(['"a"', '"\\u0061"', '"b"']))  # often the same one twice
NUMBER = st.one_of(
    st.integers(-(10**30), 10**30).map(str),
    st.sampled_from(["1.0", "1e3", "-0", "0.10", "1E-7", "-1.5e+30", "123456789012345678901234567890", "1e999"]),
)
SCALAR = st.one_of(STRING, NUMBER, st.sampled_from(["null", "true", "false"]))


@st.composite
def spaced(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    return draw(SPACE) + draw(inner) + draw(SPACE)


def _list(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(spaced(children), max_size=4).map(lambda items: "[" + ",".join(items) + "]")


def _object(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pair = st.tuples(spaced(KEY), spaced(children)).map(lambda kv: f"{kv[0]}:{kv[1]}")
    return st.lists(pair, max_size=4).map(lambda items: "{" + ",".join(items) + "}")


JSON = st.recursive(SCALAR, lambda children: st.one_of(_list(children), _object(children)), max_leaves=12)
NESTED = st.tuples(JSON, st.lists(st.booleans(), max_size=80)).map(
    lambda inner: _wrapped(*inner)  # up to 80 levels around it
)


def _wrapped(text: str, levels: list[bool]) -> str:
    for level in levels:
        text = f"[ {text}]" if level else f'{{"k":\n{text}}}'
    return text


RECORDS = st.lists(
    st.tuples(st.one_of(JSON, JSON, NESTED), st.one_of(st.none(), _object(JSON))), min_size=1, max_size=20
)
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[ \t\r\n]+|[^ \t\r\n"]+')


def compact(text: str) -> str:
    """Return the same tokens without the white space between them."""
    return "".join(token for token in TOKEN.findall(text) if not token.isspace())


def test_json_text_survives_http_the_log_and_a_kill(new_service: Callable[..., Service], tmp_path: Path) -> None:
    service = new_service().start()
    written: dict[str, list[tuple[str, str | None]]] = {}

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(RECORDS)
    def write(records: list[tuple[str, str | None]]) -> None:
        topic = f"t{len(written)}"
        rows = [f'{{"data":{data}' + ("" if meta is None else f',"meta":{meta}') + "}" for data, meta in records]
        status, answer = service.request("POST", f"/v0/topics/{topic}", '{"records":[' + ",".join(rows) + "]}")
        assert status == 201, answer
        written[topic] = records

    write()
    check(service, written)
    service.kill_group()
    service.start()
    check(service, written)
    service.restart()
    check(service, written)


def check(service: Service, written: dict[str, list[tuple[str, str | None]]]) -> None:
    assert sum(map(len, written.values())) > 100
    for topic, records in written.items():
        connection = service.connect(10)
        connection.request("POST", f"/v0/topics/{topic}/diff", b"{}", {"Content-Type": "application/json"})
        answer = compact(connection.getresponse().read().decode())
        connection.close()
        ts = re.search(r'"\$ts":(\d+)', answer)
        assert ts is not None
        expected = ",".join(
            f'{{"$seq":{seq},"$ts":{ts[1]},"data":{compact(data)}'
            + ("" if meta is None else f',"meta":{compact(meta)}')
            + "}"
            for seq, (data, meta) in enumerate(records, 1)
        )
        assert f'"records":[{expected}]' in answer
