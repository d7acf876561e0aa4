"""Pictures of requests on their way to a replica."""
