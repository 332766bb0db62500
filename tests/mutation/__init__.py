"""Mutation tests: valid requests, changed in every way that is in a table, against a gateway and shards in one process.

`examples` has the valid requests, `values` what they are changed into, `scene` runs them, `judge` says what an answer
must be."""
