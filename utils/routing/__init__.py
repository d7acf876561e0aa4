"""Which replica gets the next request: policies, what they know, and routers that use them."""
