"""An OpenAI-compatible server on the course's engine, and a load generator for any such server."""
