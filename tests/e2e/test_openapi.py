"""Claims about real answers: each is as the OpenAPI document of the service that gave it says, no more and no less."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from gateway.contract.operation import Operation
from gateway.contract.operations import OPERATIONS
from gateway.contract.routes import Routes
from tests.e2e.test_http_api import raw
from tests.mutation.examples import EXAMPLES
from tests.support.service import Service

Schema = dict[str, Any]
ROUTES = Routes(OPERATIONS)
NOT_MADE_HERE = {
    ("TopicState", "quarantined"),
    ("TopicEntry", "quarantined"),
    ("RouterState", "waits_for"),
    ("RouterEntry", "waits_for"),
    ("Ready", "detail"),
    ("ReadyDetail", "limit"),
    ("ReadyDetail", "shards"),
    ("Ready", "topics_quarantined"),
    ("Ready", "bucket_damaged"),
    ("Damage", "reason"),
    ("Damage", "since_ms"),
    ("Tombstone", "cause"),
    ("PeekedJob", "dead_letter"),
    ("PeekedJob", "waits_for"),
    ("QueueState", "waits_for"),
}
"""Fields of answers about damage, full disks and crashes, which other tests make."""
JOB = {"data": {"n": 1}, "tag": "t", "node": "n", "meta": {"m": 1}}
CALLS: list[tuple[int, str, str, Any]] = [
    (201, "PUT", "/v0/topics/log", {"cap_records": 2}),
    (200, "PUT", "/v0/topics/log", None),
    (200, "POST", "/v0/topics/log", {"records": [JOB, JOB, JOB], "later": 1}),
    (201, "POST", "/v0/topics/made?return_seqs=false", {"records": [JOB], "idempotency_key": "k"}),
    (200, "POST", "/v0/topics/made", {"records": [JOB], "idempotency_key": "k"}),
    (200, "GET", "/v0/topics/log", None),
    (200, "GET", "/v0/topics?page_size=1", None),
    (200, "POST", "/v0/topics/log/diff", {"include_tags": True, "later": 1}),
    (200, "POST", "/v0/topics/log/diff", None),
    (200, "PUT", "/v0/topics/log/cursors/c", {"seq": 2, "later": 1}),
    (200, "PUT", "/v0/topics/log/cursors/d", {"seq": 1, "force": True}),
    (200, "GET", "/v0/topics/log/cursors/c", None),
    (200, "GET", "/v0/topics/log/cursors?page_size=1", None),
    (200, "GET", "/v0/cursors?page_size=1", None),
    (200, "DELETE", "/v0/topics/log/cursors/c", None),
    (200, "POST", "/v0/topics/log/delete", {"before_seq": 3, "match": ["tag", "Glob", "t*"], "later": 1}),
    (201, "PUT", "/v0/topics/dead", {"type": "queue"}),
    (201, "PUT", "/v0/topics/jobs", {"type": "queue", "dead_letter": "dead", "max_deliveries": 1}),
    (200, "POST", "/v0/topics/jobs", {"records": [JOB, JOB, {**JOB, "delay_ms": 60000}, JOB]}),
    (200, "GET", "/v0/topics/jobs", None),
    (200, "POST", "/v0/topics/jobs/claim", {"node": "w", "max": 3, "later": 1}),
    (200, "POST", "/v0/topics/jobs/peek", {"max": 3, "later": 1}),
    (200, "POST", "/v0/topics/jobs/extend", {"node": "w", "seqs": [1], "lease_ms": 30000, "later": 1}),
    (200, "POST", "/v0/topics/jobs/ack", {"node": "w", "seqs": [1, 9], "later": 1}),
    (200, "POST", "/v0/topics/jobs/nack", {"node": "w", "seqs": [2], "reason": "why", "later": 1}),
    (200, "POST", "/v0/topics/jobs/peek", {"first_seq": 2}),
    (200, "POST", "/v0/topics/jobs/claim", {"node": "w", "ack": {"seqs": [1]}, "nack": {"seqs": [2]}, "later": 1}),
    (200, "POST", "/v0/topics/dead/redrive", {"queue": "jobs", "later": 1}),
    (200, "POST", "/v0/watch", {"topics": {"log": {"tail": True}}, "later": 1}),
    (200, "POST", "/v0/tickets", {"path": "/v0/ws", "later": 1}),
    (201, "PUT", "/v0/routers/a", {"source": "log", "dest": "copies", "filter": ["tag", "Eq", "t"]}),
    (200, "PUT", "/v0/routers/a", {"allow_cycle": True}),
    (201, "PUT", "/v0/routers/b", {"source": "log", "dest": "more"}),
    (200, "GET", "/v0/routers/a", None),
    (200, "GET", "/v0/routers?page_size=1", None),
    (200, "DELETE", "/v0/routers/a", None),
    (200, "DELETE", "/v0/routers/a", None),
    (200, "DELETE", "/v0/topics/log", None),
    (200, "DELETE", "/v0/topics/log", None),
]
"""In an order in which each finds what it needs. Operations that lack here are asked as the examples of mutations."""
REFUSED: list[tuple[str, str, str, Any]] = [
    ("invalid_request", "POST", "/v0/topics/e", {"records": []}),
    ("invalid_request", "PUT", "/v0/topics/-", None),
    ("invalid_request", "GET", "/v0/topics?page_size=x", None),
    ("invalid_request", "GET", "/v0/ws", None),
    ("batch_too_large", "POST", "/v0/topics/jobs/ack", {"node": "w", "seqs": [1] * 1001}),
    ("batch_too_large", "POST", "/v0/topics/jobs/claim", {"node": "w", "ack": {"seqs": [1] * 1001}}),
    ("batch_too_large", "POST", "/v0/topics/jobs/claim", {"node": "w", "nack": {"seqs": [1] * 1001}}),
    ("topic_not_found", "GET", "/v0/topics/none", None),
    ("topic_not_found", "POST", "/v0/topics/none/diff", None),
    ("topic_not_found", "POST", "/v0/topics/none/ack", {"node": "w", "seqs": [1]}),
    ("topic_not_found", "POST", "/v0/topics/none/delete", {"before_seq": 1}),
    ("topic_not_found", "POST", "/v0/topics/none/redrive", {"queue": "jobs"}),
    ("topic_not_found", "POST", "/v0/topics/none", {"records": [JOB], "create": False}),
    ("topic_not_found", "POST", "/v0/watch", {"topics": {"none": {}}}),
    ("topic_not_found", "GET", "/v0/topics/none/cursors", None),
    ("topic_not_found", "PUT", "/v0/topics/none/cursors/c", {"seq": 0}),
    ("topic_not_found", "DELETE", "/v0/topics/none/cursors/c", None),
    ("topic_not_found", "PUT", "/v0/routers/r", {"source": "made", "dest": "none", "create_dest": False}),
    ("topic_exists_incompatible", "PUT", "/v0/topics/jobs", {"type": "log"}),
    ("topic_exists_incompatible", "PUT", "/v0/routers/r", {"source": "made", "dest": "more"}),
    ("router_cycle", "PUT", "/v0/routers/r", {"source": "y", "dest": "x"}),
    ("router_not_found", "GET", "/v0/routers/none", None),
    ("cursor_not_found", "GET", "/v0/topics/made/cursors/none", None),
    ("cursor_not_found", "POST", "/v0/topics/made/diff", {"cursor": "none"}),
    ("not_a_queue", "POST", "/v0/topics/made/claim", {"node": "w"}),
    ("not_a_queue", "POST", "/v0/topics/made/peek", None),
    ("topic_full", "POST", "/v0/topics/full", {"records": [JOB]}),
    ("record_too_large", "POST", "/v0/topics/full", {"records": [JOB, JOB]}),
    ("topic_not_empty", "DELETE", "/v0/topics/full?if_empty=true", None),
    ("not_acceptable", "GET", "/v0/topics/jobs/work?node=w", None),
    ("not_found", "GET", "/v0/watch/wid_none", None),
]


class Document:
    """The document of a service, and the fields of its Structs that answers had."""

    def __init__(self, service: Service) -> None:
        self.whole: Schema = service.request("GET", "/v0/openapi.json")[1]
        self.seen: set[tuple[str, str]] = set()

    @property
    def schemas(self) -> Schema:
        found: Schema = self.whole["components"]["schemas"]
        return found

    def described(self, operation: Operation, status: int) -> Schema:
        responses: Schema = self.whole["paths"][operation.path][operation.method.lower()]["responses"]
        found: Schema = responses[str(status)]
        if "$ref" in found:
            found = self.whole["components"]["responses"][found["$ref"].rpartition("/")[2]]
        return found

    def check(self, schema: Schema, value: Any) -> None:
        """Check a value strictly: no field may be missing, none may be new."""
        name = schema["$ref"].rpartition("/")[2]
        Draft202012Validator({**schema, "components": {"schemas": strict(self.schemas)}}).validate(value)
        self._note(name, value)

    def _note(self, name: str, value: Any) -> None:
        for key, each in self.schemas[name].get("properties", {}).items():
            if isinstance(value, dict) and key in value:
                self.seen.add((name, key))
                self._note_inside(each, value[key])

    def _note_inside(self, schema: Schema, value: Any) -> None:
        for each in [schema, *schema.get("anyOf", ())]:
            if "$ref" in each:
                self._note(each["$ref"].rpartition("/")[2], value)
            elif isinstance(value, list) and "items" in each:
                for item in value:
                    self._note_inside(each["items"], item)
            elif isinstance(value, dict) and isinstance(each.get("additionalProperties"), dict):
                for item in value.values():
                    self._note_inside(each["additionalProperties"], item)


def strict(schemas: Schema) -> Schema:
    """The schemas, with objects that have no fields but theirs."""
    return {
        name: {**schema, "additionalProperties": False} if "properties" in schema else schema
        for name, schema in schemas.items()
    }


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("openapi")) as running:
        yield running


@pytest.fixture(scope="module")
def document(service: Service) -> Document:
    return Document(service)


def sent(service: Service, method: str, path: str, body: Any) -> tuple[int, Any, Operation]:
    operation = ROUTES.find(method, path.partition("?")[0])[0]
    headers = {} if body is None else {"Content-Type": "application/json"}
    if operation.name == "work":
        headers["Accept"] = "application/json"
    text = None if body is None else json.dumps(body).encode()
    status, _, answer = raw(service, method, path, text, **headers)
    return status, json.loads(answer), operation


def test_every_answer_is_as_documented(service: Service, document: Document) -> None:
    answered = set()
    for wanted, method, path, body in CALLS:
        status, answer, operation = sent(service, method, path, body)
        assert status == wanted, (method, path, answer)
        schema = document.described(operation, status)["content"]["application/json"]["schema"]
        document.check(schema, answer)
        assert ("ignored" in answer) == (isinstance(body, dict) and "later" in body)
        answered.add(operation.name)
    for operation in OPERATIONS:
        if operation.answer is not None and operation.name not in answered:
            _check_examples(service, document, operation)
    _jobs_in_other_states(service, document)
    asked = {operation.request.__name__ for operation in OPERATIONS if operation.request is not None}
    asked |= {"ConfigPatch", "NewRecord", "WatchStart", "ClaimAck", "ClaimNack", "Error", "ErrorAnswer"}
    documented = {(name, key) for name, schema in document.schemas.items() for key in schema.get("properties", {})}
    missing = {(name, key) for name, key in documented if name not in asked} - document.seen
    assert missing == NOT_MADE_HERE


def _check_examples(service: Service, document: Document, operation: Operation) -> None:
    for example in EXAMPLES[operation.name]:
        for method, path, body in example.before:
            assert sent(service, method, path, body)[0] in (200, 201), (method, path)
        path = operation.path
        for value in example.values:
            path = re.sub(r"\{\w+\}", value, path, count=1)
        status, answer, found = sent(service, operation.method, f"{path}?{example.query}", example.body)
        assert (status, found) in ((200, operation), (201, operation)), (operation.name, answer)
        document.check(document.described(operation, status)["content"]["application/json"]["schema"], answer)


def _jobs_in_other_states(service: Service, document: Document) -> None:
    """A tombstone, and the figures that only some answers have."""
    gap = {"records": [JOB] * 3, "config": {"cap_records": 1}}
    assert sent(service, "POST", "/v0/topics/gap", gap)[0] == 201
    assert sent(service, "POST", "/v0/topics/gap/diff", {"from_seq": 1})[1]["tombstone"]["reason"] == "cap"
    for path, body in (("gap/diff", {"from_seq": 1}), ("jobs/peek", {})):
        _, answer, operation = sent(service, "POST", f"/v0/topics/{path}", body)
        document.check(document.described(operation, 200)["content"]["application/json"]["schema"], answer)


def test_every_error_is_as_documented(service: Service, document: Document) -> None:
    assert sent(service, "PUT", "/v0/topics/full", {"discard": "reject", "cap_records": 1})[0] == 201
    assert sent(service, "POST", "/v0/topics/full", {"records": [JOB]})[0] == 200
    assert sent(service, "PUT", "/v0/topics/made", None)[0] in (200, 201)
    assert sent(service, "PUT", "/v0/topics/jobs", {"type": "queue"})[0] in (200, 201)
    assert sent(service, "PUT", "/v0/routers/xy", {"source": "x", "dest": "y"})[0] == 201
    assert sent(service, "PUT", "/v0/routers/more", {"source": "other", "dest": "more"})[0] in (201, 409)
    for code, method, path, body in REFUSED:
        status, answer, operation = sent(service, method, path, body)
        assert answer["error"]["code"] == code, (method, path, answer)
        described = document.described(operation, status)
        assert code in described["x-error-codes"], (operation.name, code)
        document.check(described["content"]["application/json"]["schema"], answer)
