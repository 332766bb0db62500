"""A shard that is not open: another machine holds it, or none does yet."""
