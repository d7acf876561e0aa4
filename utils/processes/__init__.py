"""Supervised programs, lines of JSON to and from one, servers, ranks. Imports nothing of ours."""
