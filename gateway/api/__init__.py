"""From a request to its answer, through one shard or all of them."""
