"""The shard's process: its event loop, sockets, links to the other shards, and tasks. `shardd.shard` has the rest."""
