"""Several machines in a minute: two machines and an S3 server, a third that joins, the loss of one, and a count.

    make demo-cluster

The machines are three services on this one, with a data directory each; the S3 server is moto's. Writers use all
machines in turn the whole time. Ends with a summary line and exit status 0, or with what was wrong and exit status 1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT), str(ROOT / "examples" / "flights")]

from rich.console import Console  # noqa: E402 - the path comes first
from rich.markup import escape  # noqa: E402
from service import Service  # noqa: E402
from writers import Difference, Machine, Writer, compare  # noqa: E402

from tests.support.bucket import S3Server  # noqa: E402

SHARDS = 3
TOPICS = 6
TTL_MS = 3000
SETTLE_S = 120.0
console = Console()


class Cluster:
    """The machines, by name, and the writers that use them."""

    def __init__(self, directory: Path, settings: dict[str, str]) -> None:
        cluster = {"TOPICS_REPLICATION": "sync", "TOPICS_TERM_TTL_MS": str(TTL_MS)}
        listen = {"TOPICS_CLUSTER_LISTEN": "127.0.0.1:0"}
        self.machines = {
            name: Service(directory / name, SHARDS, **settings, **cluster, **listen) for name in ("A", "B", "C")
        }
        self.running: list[str] = []
        self.writers = [Writer(f"load-{number}", self.ports) for number in range(TOPICS)]

    def ports(self) -> list[int]:
        return [self.machines[name].port for name in self.running]

    def start(self, name: str) -> None:
        seconds = self.machines[name].start()
        self.running = [*self.running, name]
        console.print(f"machine {name} serves after {seconds:.1f} s on 127.0.0.1:{self.machines[name].port}")

    def kill(self, name: str) -> None:
        self.running = [each for each in self.running if each != name]
        self.machines[name].kill()

    def held(self) -> dict[str, list[int]]:
        """Which machine holds which shards."""
        asked = {name: Machine(self.machines[name].port) for name in self.running}
        try:
            return {name: machine.held() for name, machine in asked.items()}
        finally:
            for machine in asked.values():
                machine.close()

    def settled(self) -> dict[str, list[int]]:
        """The same, once each shard has a holder. Raises `Difference` if that takes too long."""
        until = time.monotonic() + SETTLE_S
        while sum(map(len, (found := self.held()).values())) != SHARDS:
            if time.monotonic() > until:
                raise Difference(f"not every shard has a holder after {SETTLE_S:.0f} s: {found}")
            time.sleep(0.1)
        return found

    def show(self) -> dict[str, list[int]]:
        found = self.settled()
        shown = (f"{name}: {', '.join(map(str, shards)) or 'none'}" for name, shards in found.items())
        console.print(f"  shards of {' · '.join(shown)}")
        return found

    def load(self, seconds: float) -> None:
        """Let the writers write for a while. Raises what stopped one of them."""
        before, began = self.acked, time.monotonic()
        while time.monotonic() - began < seconds:
            time.sleep(0.05)
            self.check()
        count, took = self.acked - before, time.monotonic() - began
        console.print(f"  {count:,} records acknowledged in {took:.1f} s: [bold]{count / took:,.0f} records/s[/bold]")

    def check(self) -> None:
        for writer in self.writers:
            if writer.error is not None:
                raise writer.error

    @property
    def acked(self) -> int:
        return sum(len(writer.acked) for writer in self.writers)

    def end_load(self) -> None:
        for writer in self.writers:
            writer.stop.set()
        for writer in self.writers:
            writer.join()
        self.check()

    def close(self) -> None:
        for writer in self.writers:
            writer.stop.set()
        for service in self.machines.values():
            service.stop()


def lose_one(cluster: Cluster, seconds: float) -> str:
    """Kill the machine that holds the most shards. Returns its name."""
    held = cluster.settled()
    lost = max(held, key=lambda name: len(held[name]))
    before, began = cluster.acked, time.monotonic()
    cluster.kill(lost)
    console.print(f"SIGKILL to all processes of machine {lost}, which held {len(held[lost])} of {SHARDS} shards")
    cluster.settled()
    seconds_without = time.monotonic() - began
    console.print(f"  the others hold them after {seconds_without:.1f} s (a term lives for {TTL_MS / 1000:.0f} s)")
    cluster.show()
    cluster.load(seconds)
    if cluster.acked == before:
        raise Difference("nothing was acknowledged after the loss")
    return lost


def demonstrate(cluster: Cluster, seconds: float) -> None:
    for name in ("A", "B"):
        cluster.start(name)
    cluster.show()
    for writer in cluster.writers:
        writer.start()
    console.print(f"{TOPICS} writers, each uses the machines in turn")
    cluster.load(seconds)
    cluster.start("C")
    cluster.load(seconds)
    cluster.show()
    lost = lose_one(cluster, seconds)
    console.print(f"machine {lost} comes back")
    cluster.start(lost)
    cluster.load(seconds)
    cluster.show()
    cluster.end_load()
    total = 0
    for name in cluster.running:
        total = sum(compare(cluster.machines[name].port, writer) for writer in cluster.writers)
        console.print(f"{total:,} records read through machine {name}, and compared")
    longest = max(writer.longest_s for writer in cluster.writers)
    again = sum(writer.again for writer in cluster.writers)
    console.print(
        f"[bold green]PROOF[/bold green] all {total:,} acknowledged records are there once and in order, through each "
        f"of {len(cluster.running)} machines, after a join and a loss; {again} writes were sent again, none took "
        f"longer than {longest:.1f} s",
        soft_wrap=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="how long each part of the load takes")
    options = parser.parse_args()
    began = time.monotonic()
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="topics-cluster-"))
        store = stack.enter_context(S3Server())
        console.print(f"S3 server at {store.endpoint}")
        cluster = Cluster(Path(directory), {"TOPICS_BUCKET": store.url, **store.environment})
        stack.callback(cluster.close)
        demonstrate(cluster, options.seconds)
        stack.pop_all().close()
    console.print(f"{time.monotonic() - began:.0f} s in all")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Difference, OSError, RuntimeError) as error:
        console.print(f"[bold red]FAILED[/bold red] {type(error).__name__}: {escape(str(error))}", soft_wrap=True)
        sys.exit(1)
