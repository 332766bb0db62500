"""Per-process facilities: logging, trace context, freed memory, core dumps, death with the supervisor."""
