"""The fast path of a CPU, in C++. In vLLM: `csrc/cpu`. The engine runs without it, slower."""
