"""The shards as the gateway sees them: the client that asks them."""
