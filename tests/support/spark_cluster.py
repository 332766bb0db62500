"""A standalone Spark cluster on loopback: a master and two workers with one core each, from this Python's Spark."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyspark

from tests.support.service import until
from tests.support.spark import ROOT

WORKERS = 2
TIMEOUT_S = 120.0


class Cluster:
    """A context manager: leaving it ends master and workers, and with them the executors. Logs are in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self.master = ""

    def __enter__(self) -> Cluster:
        try:
            log = self._start("master", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0")
            self.master = self._said(log, r"Starting Spark master at (spark://\S+)")
            for number in range(WORKERS):
                log = self._start(
                    f"worker{number}",
                    "org.apache.spark.deploy.worker.Worker",
                    *("--host", "127.0.0.1", "--cores", "1", "--memory", "1g"),
                    *("--work-dir", str(self._directory / f"work{number}"), self.master),
                )
                self._said(log, r"(Successfully registered with master)")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def settings(self) -> dict[str, str]:
        """Return the settings of a driver, for `Spark(**cluster.settings())`."""
        return {
            "spark__master": self.master,
            "spark__executor__memory": "512m",
            "spark__driver__host": "127.0.0.1",
            "spark__driver__bindAddress": "127.0.0.1",
            "spark__executorEnv__PYTHONPATH": str(ROOT),
        }

    def _start(self, name: str, role: str, *arguments: str) -> Path:
        log = self._directory / f"{name}.log"
        home = Path(pyspark.__file__).parent
        environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
        environment |= {"SPARK_DAEMON_MEMORY": "256m", "PYSPARK_PYTHON": sys.executable, "SPARK_NO_DAEMONIZE": "1"}
        with log.open("wb") as file:
            self._processes.append(
                subprocess.Popen(
                    [str(home / "bin" / "spark-class"), role, "--webui-port", "0", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    env=environment,
                )
            )
        return log

    def _said(self, log: Path, pattern: str) -> str:
        def found() -> re.Match[str] | None:
            for process in self._processes:
                assert process.poll() is None, f"a process of the cluster ended:\n{log.read_text()[-2000:]}"
            return re.search(pattern, log.read_text())

        return str(until(found, f"{pattern} in {log.name}", TIMEOUT_S)[1])

    def close(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes = []
