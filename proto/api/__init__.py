"""The bodies of the HTTP API: the Structs that parse the requests, and those that the answers are made of."""
