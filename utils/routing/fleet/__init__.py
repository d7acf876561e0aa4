"""Real replicas, the field's routers in front of them, and what to find out with both."""
