"""What lasts: event streams, WebSocket commands, watch sessions, streams of jobs. Bytes on the wire are for
`gateway.http`.
"""
