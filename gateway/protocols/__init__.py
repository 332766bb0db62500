"""The Walrus and Rog servers: TCP sockets, and commands as operations on topics. `proto.wire` encodes the bytes."""
