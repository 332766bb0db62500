"""One shard: the process that owns a WAL and every topic whose name hashes to it. Clients are for `gateway`."""
