"""The shards as the gateway sees them: the client that asks them, and the accounts behind the caps over all shards."""
