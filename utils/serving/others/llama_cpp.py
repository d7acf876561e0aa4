"""llama.cpp's HTTP server, from the package `xllamacpp`, as a program of its own.

    python -m utils.serving.others.llama_cpp MODEL.gguf --parallel 8 --port 8080

The package holds llama.cpp's server as a library, and has no command line.
"""

from __future__ import annotations

import argparse
import os
import threading


def parser() -> argparse.ArgumentParser:
    """The command line. Names are those of llama.cpp's own `llama-server`."""
    options = argparse.ArgumentParser("python -m utils.serving.others.llama_cpp")
    options.add_argument("model", help="a GGUF file")
    options.add_argument("--host", default="127.0.0.1")
    options.add_argument("--port", type=int, default=8080)
    options.add_argument("--parallel", type=int, default=8, help="slots: requests at a time")
    options.add_argument("--ctx-size", type=int, default=8192, help="tokens of all slots together")
    options.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    return options


def main() -> None:
    """Serve until the process is ended."""
    import xllamacpp

    options = parser().parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.hostnames, params.port = [options.host], options.port
    params.n_parallel, params.n_ctx = options.parallel, options.ctx_size
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    params.n_gpu_layers, params.ui = 0, False
    server = xllamacpp.Server(params)
    print(f"llama.cpp on {server.listening_address}; {xllamacpp.get_system_info()}", flush=True)
    threading.Event().wait()  # it serves in threads of its own


if __name__ == "__main__":
    main()
