"""A cluster of replicas behind a router, request by request: no model runs."""
