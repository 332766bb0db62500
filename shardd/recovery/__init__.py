"""Recovery: rebuilds the shard's state from its log after a stop of any kind, and quarantines damaged topics."""
