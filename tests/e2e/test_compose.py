"""Claims about deploy/compose, without an engine: its machines, with the settings of the file and an S3 server in the
place of its store, serve through its proxy, also when one of them is lost."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.test_deploy import DEPLOY, adapted
from tests.support.bucket import S3Server
from tests.support.programs import free_port, run, running, tool
from tests.support.service import Service, until

KEY = "0123456789abcdef0123456789abcdef"
NAMES = ("one", "two", "three")
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
PATIENCE_S = 90


def test_each_machine_has_the_same_settings_and_an_address_and_a_volume_of_its_own() -> None:
    services = COMPOSE["services"]
    settings = [services[name]["environment"] for name in NAMES]
    assert [each["TOPICS_ADVERTISE"] for each in settings] == [f"http://{name}:4000" for name in NAMES]
    assert [services[name]["volumes"] for name in NAMES] == [[f"{name}:/var/lib/topics"] for name in NAMES]
    assert set(COMPOSE["volumes"]) == {*NAMES, "store"}
    same = [{name: value for name, value in each.items() if name != "TOPICS_ADVERTISE"} for each in settings]
    assert same[0] == same[1] == same[2]


def test_its_parts_fit_each_other() -> None:
    services, (one, *_) = COMPOSE["services"], [COMPOSE["services"][name] for name in NAMES]
    settings, store = one["environment"], services["store"]["environment"]
    assert settings["AWS_ENDPOINT_URL"] == "http://store:9000"
    assert settings["AWS_ACCESS_KEY_ID"] == store["MINIO_ROOT_USER"]
    assert settings["AWS_SECRET_ACCESS_KEY"] == store["MINIO_ROOT_PASSWORD"]
    bucket = settings["TOPICS_BUCKET"].removeprefix("s3://").partition("/")[0]
    (script,) = services["bucket"]["command"]
    assert script.splitlines()[-1].endswith(f"store/{bucket}")
    for secret in (store["MINIO_ROOT_USER"], store["MINIO_ROOT_PASSWORD"]):
        assert f" {secret}" in script
    proxy = (DEPLOY / "compose" / "haproxy.cfg").read_text()
    assert all(f"server {name} {name}:4000 check\n" in proxy for name in NAMES)
    (source, target, _) = services["proxy"]["volumes"][0].split(":")
    assert (DEPLOY / "compose" / source).exists()
    assert target.startswith("/usr/local/etc/haproxy/")
    dockerfile = DEPLOY / "compose" / one["build"]["context"] / one["build"]["dockerfile"]
    assert dockerfile.exists()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[dict[str, Service]]:
    """As the file starts them, at addresses of this machine; with a shorter time to live."""
    (tmp_path / "keys").write_text(KEY + "\n")
    os.chmod(tmp_path / "keys", 0o600)
    with ExitStack() as stack:
        store = stack.enter_context(S3Server("topics"))
        made: dict[str, Service] = {}
        for name in NAMES:
            (tmp_path / name).mkdir()
            settings = COMPOSE["services"][name]["environment"] | {
                **store.environment,
                "TOPICS_API_KEYS_FILE": str(tmp_path / "keys"),
                "TOPICS_CLUSTER_LISTEN": "127.0.0.1:0",
                "TOPICS_ADVERTISE": "",
                "TOPICS_TERM_TTL_MS": "2000",
                "TOPICS_SHARDS": "2",
            }
            made[name] = service = Service(tmp_path / name, shards=None, **settings)
            stack.callback(service.close)
            service.start(wait=False)
        for service in made.values():
            until(lambda service=service: ready(service), "the machines", PATIENCE_S)
        yield made


def ready(service: Service) -> bool:
    service.port = int(service.status().get("url", ":0").rpartition(":")[2])
    return service.port != 0 and asked(service.port, "GET", "/v0/ready")[0] == 200


def asked(port: int, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")
    except (OSError, ValueError, http.client.HTTPException):
        return 0, None
    finally:
        connection.close()


def test_clients_of_the_proxy_use_all_machines_and_the_loss_of_one_costs_no_record(
    machines: dict[str, Service], tmp_path: Path
) -> None:
    port = free_port()
    text = adapted(
        (DEPLOY / "compose" / "haproxy.cfg").read_text(),
        port=f"bind :4000 => bind 127.0.0.1:{port}",
        **{name: f" {name}:4000 =>  127.0.0.1:{service.port}" for name, service in machines.items()},
    )
    path = tmp_path / "haproxy.cfg"
    path.write_text(text)
    run(tool("haproxy"), "-c", "-f", str(path))
    acked: list[int] = []

    def write() -> bool:
        number = len(acked)
        body = {"records": [{"data": number}], "idempotency_key": str(number), "config": {"durability": "fsync"}}
        status, answer = asked(port, "POST", "/v0/topics/t", body)
        assert status in (0, 200, 201, 502, 503), answer
        if status in (200, 201):
            acked.append(number)
        return status in (200, 201)

    with running([tool("haproxy"), "-db", "-f", str(path)]):
        until(write, "a write through the proxy", PATIENCE_S)
        for _ in range(30):
            until(write, "a write", PATIENCE_S)
        for name, each in machines.items():  # shards may still move
            until(lambda each=each: asked(each.port, "GET", "/v0/ready")[0] == 200, f"{name} to be ready", PATIENCE_S)
        machines["one"].kill_group()
        began = time.monotonic()
        until(write, "a write after the loss", PATIENCE_S)
        assert time.monotonic() - began < 30
        for _ in range(30):
            until(write, "a write", PATIENCE_S)
        found = asked(port, "POST", "/v0/topics/t/diff", {"from_seq": 0, "limit": 1000})[1]["records"]
        assert [record["data"] for record in found] == acked
