"""HTTP and WebSocket as bytes and values. Opens no sockets and knows nothing of topics."""
