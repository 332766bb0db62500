"""What operators see: metrics, the request log, spans. It looks on and decides nothing."""
