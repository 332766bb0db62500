"""The API's vocabulary, shared by all processes: names, keys, errors, limits, request bodies."""
