"""A real llama.cpp server in a process of its own: `python llamacpp_server.py MODEL.gguf PORT CONTEXT_SIZE`.

Prints its address when the model is loaded, and ends when its standard input closes, so that it can't outlive a test.
"""

from __future__ import annotations

import os
import sys

THREADS = 2


def main() -> None:
    """Loads the model and serves until the parent is gone."""
    import xllamacpp  # type: ignore[import-untyped]

    model, port, context_size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_ctx = context_size
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.cache_ram_mib = 64
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = THREADS
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()
    os._exit(0)  # the native threads don't stop by themselves


if __name__ == "__main__":
    main()
