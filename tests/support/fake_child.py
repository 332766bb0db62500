"""A scripted child process, for a fork server: speaks the control protocol, does nothing else.

It appends every message it receives to FAKE_DIRECTORY/<role>-<index>.log, one JSON line each. FAKE_BEHAVIOUR is one of:

    good          ready at once, drains and stops when told
    die           exits with status 9 before it is ready
    die-once      the same, but only if FAKE_DIRECTORY/died does not exist yet
    deposed       ready, then exits as a shard that another machine holds, but only if FAKE_DIRECTORY/deposed does not
                  exist yet
    fail          says Failed, exits with status 3
    stubborn      ready, ignores Stop
    slow          progress in three steps, then ready
    silent        never says anything, but stops when told
    hang-up       ready, then closes its control socket and lives on
    mute          ready, answers no Ping
    follows       in phase standby: another machine holds the shard
    follows-on    the same, and ignores Stop
    members       ready, and reports MEMBERS
    places        ready, and has decided that shard 1 is to be given away
    wants-0-2     ready, and has decided that shards 0 and 2 are to have processes, and that HELD holds the others
    refused       is a roster on a copy of a data directory
    keeps         ready, never done with what it has in hand when it retires
    nonsense      sends bytes that are no message

`BEHAVIOUR:N` is that of shard N, or of the child NAME, until FAKE_DIRECTORY/mended exists; the others, and that one
afterwards, are good.
"""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path

import msgspec

from proto.ipc.control import (
    CONTROL_FD_VARIABLE,
    EXIT_DEPOSED,
    Complete,
    Control,
    Decoder,
    Drain,
    Drained,
    Failed,
    Holder,
    Keys,
    KeysTaken,
    Members,
    Ping,
    Placement,
    Pong,
    Progress,
    Ready,
    Retire,
    Start,
    Step,
    Stop,
    encode,
)
from proto.process.orphan import die_with_parent

MEMBERS = {"a key": "mOther"}
STEP = Step(1, 5, 3, "ending")
HELD = Holder("http://c", "tcp://c:1", "another key")


def run() -> int:
    behaviour, directory = os.environ["FAKE_BEHAVIOUR"], Path(os.environ["FAKE_DIRECTORY"])
    die_with_parent()
    control = socket.socket(fileno=int(os.environ[CONTROL_FD_VARIABLE]))
    decoder = Decoder()
    name = "?"

    def say(*messages: Control) -> None:
        for message in messages:
            control.sendall(encode(message))

    while data := control.recv(65536):
        for message in decoder.feed(data):
            if isinstance(message, Start):
                name = f"{message.role}-{message.index}"
                behaviour, _, index = behaviour.partition(":")
                if index and (name not in (index, f"shard-{index}") or (directory / "mended").exists()):
                    behaviour = "good"
            line = json.dumps(
                [
                    type(message).__name__,
                    msgspec.to_builtins(message, builtin_types=(bytes,)),
                    os.getpid(),
                    dict(os.environ),
                ],
                default=bytes.hex,
            )
            with open(directory / f"{name}.log", "a") as log:
                log.write(f"\n{line}")  # the newline first: a line that a kill cut short gets no other behind it
            match message, behaviour:
                case Start(), "die":
                    return 9
                case Start(), "die-once" if not (directory / "died").exists():
                    (directory / "died").touch()
                    return 9
                case Start(), "deposed" if not (directory / "deposed").exists():
                    (directory / "deposed").touch()
                    say(Ready())
                    return EXIT_DEPOSED
                case Start(), "fail":
                    say(Progress("replay", 1, 2), Failed("wal-7.log is damaged at byte 99"))
                    return 3
                case Start(), "slow":
                    say(Progress("replay", 0, 100), Progress("replay", 50, 100), Progress("derive", 100, 100), Ready())
                case Start(), "silent":
                    pass
                case Start(), "nonsense":
                    control.sendall(b"\4\0\0\0nope")
                case Start(), "follows" | "follows-on":
                    say(Progress("standby", 0, 0, "http://b", 0, "", "tcp://b:1", "the key"))
                case Start(), "places":
                    say(Ready(), Placement([0, 1], STEP))
                case Start(), _ if behaviour.startswith("wants"):
                    wanted = [int(index) for index in behaviour.split("-")[1:]]
                    say(Ready(), Placement([0, 0], wanted=wanted, holders=[HELD, HELD]))
                case Start(), "refused":
                    say(Ready(), Placement([], refused=True), Failed("a copy"))
                    return 3
                case Start(), "members":
                    say(Ready(), Members(MEMBERS))
                case Start(), _:
                    say(Ready())
                    if message.role == "gateway":
                        say(Complete())
                    if behaviour == "hang-up":
                        control.shutdown(socket.SHUT_RDWR)
                        time.sleep(60)
                case Keys(), _:
                    say(KeysTaken(message.number))
                case Ping(), "mute":
                    pass
                case Ping(), _:
                    say(Pong())
                case Retire(), "keeps":
                    pass
                case Drain() | Retire(), _:
                    say(Drained())
                case Stop(), "stubborn" | "follows-on":
                    time.sleep(60)
                case Stop(), _:
                    return 0
    return 1
