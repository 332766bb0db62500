"""Being a process: the loop, its sockets, the other shards, tasks. What the shard does is in `shardd.shard`."""
