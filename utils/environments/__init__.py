"""Which Python runs what needs packages of its own, and how such an environment is built."""
