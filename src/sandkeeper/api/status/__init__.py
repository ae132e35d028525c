"""Status reads and streams: cache, serializers, SSE."""
