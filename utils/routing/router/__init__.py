"""Our own router: HTTP in, a policy's choice, HTTP out, and what happens when a replica dies."""
