"""The whole system in one process: the product's own code, under a seeded order of events and seeded faults.

A *schedule* is made from a seed: requests of a few clients, and faults, each with a time. `runs.run` carries it out in
one trio run, on a clock that jumps. It takes some tens of milliseconds.

    the product's code                                     replaced
    a shard: `shardd.process.main._serve` and all that     the processes (`processes`): a scope of tasks each
      it assembles
    a gateway: `gateway.api` from a parsed request on,     the HTTP parser and the reactor
      its client of the shards
    links, packets, windows, deadlines (`proto.ipc`)       ZeroMQ (`network`): pipes that keep their order and take a
                                                           seeded time; pipes overtake each other
    control messages, encoded                              the socket pair of each child (`network`)
    `supervisor.process.child`: restarts, phases           the fork server: a child is a scope of tasks (`supervisor`)
    the log, checkpoints, recovery                         the disk (`tests.support.fault_disk`), the sync thread and
                                                           worker threads (`seams`): a seeded time, then the call itself
    the checker (`topics_history`)                         the clock, random numbers (`seams`)

**Faults.** Each ends by itself, and its victim is started again as the supervisor decides.

    kill         the process ends where its tasks wait, or at a call of its disk (`dies`): what it wrote stays, its
                 memory and what it had queued is lost. Of the packets under way from it, a seeded number arrives
    lost         the gateway ends in the same way; its clients do not know what became of their requests
    power        all processes and the supervisor end; each disk keeps what was synced, and a seeded part of the rest
    sync fails   the next sync of a shard's disk fails, and the kernel forgets what it was to cover
    write fails  the next write of a shard's disk fails, or is short
    pause        no task of a process runs for a while; its links and its disk do

**Order.** trio shuffles the tasks that are ready by a generator that is seeded, and its wait jumps to what comes next
(`inner_trio`). A packet, a control message, a sync and a call in a worker thread take a seeded time. So a schedule is
the same each time, whatever the hash seed; `Run.trace` has each packet, fault and answer.

**Judgement.** Clients write a history. After the faults everything is read, and `topics_history` decides. Of the queue
with dead letters, `tests.history.jobs.ends` compares each job with its end. Besides, no process may end by itself or
answer `500`, and everything has to serve again.

**Left out**: several machines and their bucket, several gateways, HTTP, streams, the other protocols, cold files, a
full disk, requests in hand at a death (`proto.ipc.in_hand`). Time passes only while something waits, so no code is slow
and no slice of work is ever cut short.
"""
