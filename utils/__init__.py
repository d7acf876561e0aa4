"""Code behind the course "From KV Cache to vLLM": engine, quantizers, pipeline, checks, plots."""
