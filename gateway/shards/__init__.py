"""The shards as the gateway sees them: how to ask them, and the books behind the caps over all of them."""
