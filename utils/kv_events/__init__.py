"""KV events: what an engine's prefix cache gains and loses, in vLLM's format and on its wire."""
