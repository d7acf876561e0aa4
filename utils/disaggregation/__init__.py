"""Prefill and decode apart, and keys and values shared: a real store, real servers, and studies.

- `valkey`: a store of keys and values in a process of its own, started from a notebook
- `block_keys`, `block_store`: blocks by chain key, in a store that may fail
- `vllm_connector`: keeps vLLM's blocks in that store; it runs inside vLLM
- `vllm_servers`: vLLM servers that share a store, and what they count
- `proxy`: sends a prompt to one server for prefill and to another one for decoding
- `equal_hardware`: the same requests for two engines that share the work in different ways
- `goodput`: a simulator of goodput with prefill and decode together, or apart
- `distserve`: a published figure, simulated
- `cacheblend`: reuse of chunks that are no prefix, measured
- `connectors`: what vLLM's connectors are for
"""
