"""A client of a test in a thread of its own: the same turn again and again, until it is to stop."""

from __future__ import annotations

import threading

PATIENCE_S = 60.0


class Looped(threading.Thread):
    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.failure: BaseException | None = None
        self.stopping = threading.Event()

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.turn()
        except BaseException as error:  # a thread's failure is the test's
            self.failure = error
        finally:
            self.close()

    def turn(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Called after the last turn."""

    def finish(self) -> None:
        """Stop after the present turn. Raises what a turn has raised."""
        self.stopping.set()
        self.join(PATIENCE_S)
        assert not self.is_alive(), f"{self.name} hangs"
        if self.failure is not None:
            raise self.failure
