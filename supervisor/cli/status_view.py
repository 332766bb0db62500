"""Status view: the data of `topics status`, from the service's API and a local status file, and its rendering."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from supervisor.cli.endpoint import Endpoint
from supervisor.cli.quantities import counted, size
from supervisor.client.http_client import Client, Refused, Unavailable

LAGGARDS = 10
"""Number of cursors shown: those with the largest lag."""


def gather(client: Client, endpoint: Endpoint) -> dict[str, Any]:
    """The whole status as JSON values. `state` is `ready`, `standby`, `not_ready`, `shutting_down` or `unreachable`.
    Parts that could not be fetched are absent, and `problems` says why."""
    found: dict[str, Any] = {"url": endpoint.url, "state": "unreachable", "problems": []}
    if endpoint.local is not None:
        found["processes"] = _processes(endpoint.local)
    try:
        answer = client.get("/v0/ready", also=(503,))
        found["state"], holder = _state(answer.status, answer.body)
        found |= {"holder": holder} if holder else {}
        health = client.get("/v0/health").json()
        found["version"], found["uptime_ms"] = health.get("version"), health.get("uptime_ms")
        found |= _of_metrics(client.get("/v0/metrics").json())
    except (Refused, Unavailable, ValueError) as error:
        found["problems"].append(str(error))
    if endpoint.local is not None and "disk" in found:
        found["disk"] |= _usage(endpoint.local["data_dir"], found["disk"]["free_bytes"])
    if endpoint.local is not None:
        found["aside"] = sorted(map(str, Path(endpoint.local["data_dir"]).glob("shard-*/aside-*")))
    return found


def _state(status: int, body: bytes) -> tuple[str, str]:
    """The state, and for a standby the holder's address."""
    if status == 200:
        return "ready", ""
    try:
        error = json.loads(body)["error"]
        detail = error.get("detail") or {}
        if detail.get("standby"):
            return "standby", str(detail["holder"])
        return ("shutting_down" if error["code"] == "shutting_down" else "not_ready"), ""
    except (ValueError, KeyError, TypeError, AttributeError):
        return "not_ready", ""


def _processes(local: Mapping[str, Any]) -> list[dict[str, Any]]:
    supervisor = {"process": "supervisor", "pid": local["pid"], "state": "serving", "phase": "", "restarts": 0}
    return [
        supervisor,
        *(
            {
                "process": name,
                "pid": child["pid"],
                "state": child["state"],
                "phase": child["phase"],
                "restarts": max(child["incarnation"] - 1, 0),
                **{name: child[name] for name in ("term", "holder") if name in child},
            }
            for name, child in sorted(local.get("children", {}).items())
        ),
    ]


def _of_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    restarts = _by_label(metrics, "topics_shard_restarts_total", "shard")
    up = _by_label(metrics, "topics_shard_up", "shard")
    phases = {
        each["labels"]["shard"]: each["labels"]["phase"]
        for each in metrics.get("topics_shard_phase", ())
        if each["value"]
    }
    lags = [{**each["labels"], "lag": each["value"]} for each in metrics.get("topics_cursor_lag", ()) if each["value"]]
    return {
        "recovery_progress": metrics.get("topics_recovery_progress"),
        "shards": [
            {
                "shard": int(shard),
                "up": bool(up[shard]),
                "phase": phases.get(shard, ""),
                "restarts": restarts.get(shard, 0),
            }
            for shard in sorted(up, key=int)
        ],
        "topics": metrics.get("topics_topics"),
        "records": metrics.get("topics_records_live"),
        "bytes": metrics.get("topics_bytes_live"),
        "requests_in_flight": metrics.get("topics_http_requests_in_flight"),
        "streams": metrics.get("topics_sse_connections"),
        "queues": {
            "topics": metrics.get("topics_queue_topics"),
            "in_flight": metrics.get("topics_queue_leases_in_flight"),
        },
        "wal": {
            "read_only": metrics.get("topics_wal_read_only"),
            "queue_depth": metrics.get("topics_wal_queue_depth"),
            "fsync_p99_us": percentile(metrics.get("topics_wal_fsync_latency_us"), 0.99),
        },
        "replica": _replica(metrics),
        "disk": {
            "free_bytes": _value(metrics.get("topics_disk_free_bytes")),
            "refused_total": metrics.get("topics_disk_refused_total"),
        },
        "lag": sorted(lags, key=lambda each: -each["lag"])[:LAGGARDS],
    }


def _replica(metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Role and lag of each shard's copy in a bucket; empty without a bucket."""
    roles = {each["labels"]["shard"]: each["labels"]["role"] for each in metrics.get("topics_replica_role", ())}
    lag_bytes = _by_label(metrics, "topics_replica_lag_bytes", "shard")
    lag_s = _by_label(metrics, "topics_replica_lag_seconds", "shard")
    failures = _by_label(metrics, "topics_replica_failures_total", "shard")
    return [
        {
            "shard": int(shard),
            "role": roles[shard],
            "lag_bytes": lag_bytes.get(shard),
            "lag_s": lag_s.get(shard),
            "failures": failures.get(shard),
        }
        for shard in sorted(roles, key=int)
    ]


def _by_label(metrics: Mapping[str, Any], name: str, label: str) -> dict[str, float]:
    return {each["labels"][label]: each["value"] for each in metrics.get(name, ())}


def _value(found: Any) -> float | None:
    """The value of a metric that has no sample until it is known; None for the empty list it is until then."""
    return None if isinstance(found, list) else found


def percentile(histogram: Mapping[str, Any] | None, share: float) -> float | None:
    """Upper bound of the first bucket that covers `share` of all values; None without values or without a bound."""
    if not histogram or not histogram["count"]:
        return None
    bound = next(b["le"] for b in histogram["buckets"] if b["count"] >= share * histogram["count"])
    return None if bound == "+Inf" else float(bound)


def _usage(data_dir: str, free_bytes: float | None) -> dict[str, float]:
    """Of the data directory's disk. `free_bytes` is what the shards say; those of a standby say nothing."""
    try:
        usage = shutil.disk_usage(data_dir)
        return {"total_bytes": usage.total, "free_bytes": usage.free if free_bytes is None else free_bytes}
    except OSError:
        return {}


# Rendering


def rendered(found: Mapping[str, Any]) -> RenderableType:
    parts: list[RenderableType] = [_headline(found)]
    if "processes" in found:
        table = Table("process", "pid", "state", "phase", "restarts", box=None, pad_edge=False)
        for each in found["processes"]:
            shown = {**each, "phase": f"{each['phase']}, term {each['term']}" if "term" in each else each["phase"]}
            table.add_row(*(str(shown[name]) for name in ("process", "pid", "state", "phase", "restarts")))
        parts += ["", table]
    if "shards" in found:
        table = Table("shard", "up", "phase", "restarts", box=None, pad_edge=False)
        for shard in found["shards"]:
            up = Text("yes", "green") if shard["up"] else Text("no", "red")
            table.add_row(str(shard["shard"]), up, shard["phase"], str(shard["restarts"]))
        parts += ["", table, "", *_figures(found), *map(_bucket, found.get("replica", ()))]
    if found.get("lag"):
        table = Table("topic", "cursor", "lag", box=None, pad_edge=False)
        for each in found["lag"]:
            table.add_row(each["topic"], each["cursor"], f"{each['lag']:,}")
        parts += ["", table]
    aside = (f"set aside: {path}; remove it when nothing in it is wanted" for path in found.get("aside", ()))
    parts += [Text(line, "yellow") for line in aside]
    parts += [Text(problem, "red") for problem in found["problems"]]
    return Group(*parts)


def _bucket(each: Mapping[str, Any]) -> Text:
    behind = f"{size(each['lag_bytes'])} behind for {each['lag_s']:.1f} s"
    line = f"bucket, shard {each['shard']}: {each['role']}, {behind}"
    return Text(line, "" if each["role"] == "holder" else "red")


def _headline(found: Mapping[str, Any]) -> Text:
    color = {"ready": "green", "unreachable": "red"}.get(found["state"], "yellow")
    line = Text.assemble(found["url"], "  ", (found["state"].replace("_", " "), color))
    if "holder" in found:
        line.append(f"  {found['holder']} holds the shards")
    if found["state"] == "not_ready" and found.get("recovery_progress") is not None:
        line.append(f"  {found['recovery_progress']:.0%} read back")
    if found.get("uptime_ms") is not None:
        line.append(f"  version {found['version']}, up {found['uptime_ms'] / 1000:,.0f} s")
    return line


def _figures(found: Mapping[str, Any]) -> list[str]:
    wal, disk, queues = found["wal"], found["disk"], found["queues"]
    p99 = "-" if wal["fsync_p99_us"] is None else f"at most {wal['fsync_p99_us'] / 1000:g} ms"
    free = "-" if disk["free_bytes"] is None else size(int(disk["free_bytes"]))
    of = f" of {size(int(disk['total_bytes']))}" if "total_bytes" in disk else ""
    read_only = f", {wal['read_only']:g} READ-ONLY" if wal["read_only"] else ""
    refused = f", {counted(disk['refused_total'], 'write')} refused" if disk["refused_total"] else ""
    return [
        f"{counted(found['topics'], 'topic')}, {counted(found['records'], 'record')}, {size(int(found['bytes']))}",
        f"{counted(queues['topics'], 'queue')} with {counted(queues['in_flight'], 'job')} in flight",
        f"{counted(found['requests_in_flight'], 'request')} in flight, {counted(found['streams'], 'stream')}",
        f"log: {counted(wal['queue_depth'], 'write')} waiting, p99 of syncs {p99}{read_only}",
        f"disk: {free} free{of}{refused}",
    ]
