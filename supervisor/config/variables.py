"""Environment variables of the commands that ask a service. `topics serve` reads none of them."""

URL = "TOPICS_URL"
TOKEN = "TOPICS_TOKEN"
"""API key of the service."""
CONTEXT = "TOPICS_CONTEXT"
