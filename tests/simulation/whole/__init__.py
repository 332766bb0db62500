"""The whole system in one process: the product's own code, under a seeded order of events and seeded faults.

A *schedule* is made from a seed: requests of a few clients, and faults, each with a time. `runs.run` carries it out in
one trio run, on a clock that jumps. It takes some tens of milliseconds.

    the product's code                                     replaced
    a shard: `shardd.process.main.ShardProcess` and all    the processes (`processes`): a scope of tasks each
      that it assembles
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

**Several machines** (`cluster_schedule`, `cluster_runs`) share a bucket, with `TOPICS_REPLICATION=sync`. Each has all
of the above, and a roster.

    the product's code                                     replaced
    a shard from `shardd.process.main._begin` on: its      the object store (`bucket`): objects in memory, each request
      role, the shipper, checkpoints and retention in        takes a seeded time, and may be refused, lost or late
      the bucket, the closed log, the giver
    the roster: `shardd.process.roster._keep`              worker threads that ask the store (`threads`): one runs at a
                                                             time, and waits on the simulation's clock
    `supervisor.process.cluster.Machines`                  the supervisor's service, which passes messages on
    links to other machines, whom a shard hears            ZeroMQ over TCP (`remote`): connections that end, are cut
                                                             and fall silent

    all, power   of one machine; it comes back, after a while if it had no power
    wipe         as power, and it comes back without data, as another machine
    leave        `topics leave`; it starts again later
    stop         all processes of a machine are paused: its terms pass, and it wakes as the holder that it was
    cut bucket   no request of a machine reaches the bucket, or no answer comes back
    cut machines nothing passes between a machine and the others; what was sent arrives later
    the bucket   answers 409 to a creation that meets another one; in bad weather also 412 after a creation of its own,
                 429 or 503 whether carried out or not, late, or not at all

**Order.** trio shuffles the tasks that are ready by a generator that is seeded, and its wait jumps to what comes next
(`inner_trio`). A packet, a control message, a sync and a call in a worker thread take a seeded time. So a schedule is
the same each time, whatever the hash seed; `Run.trace` has each packet, fault and answer.

**Judgement.** Clients write a history. After the faults everything is read, and `topics_history` decides. Of the queue
with dead letters, `tests.history.jobs.ends` compares each job with its end. Besides, no process may end by itself or
answer `500`, and everything has to serve again. Where nothing fails and shards only move (`cluster_schedule.calm`), no
request may fail.

**Left out**: several gateways, HTTP, streams, the other protocols, cold files, a full disk, requests in hand at a death
(`proto.ipc.in_hand`). Of several machines: `async`, sealed buckets, takeovers by hand, copied directories, times to
live that differ, the removal of files that are not needed for a day. The bucket keeps what it has, and its listings
show all. Time passes only while something waits, so no code is slow and no slice of work is ever cut short.
"""
