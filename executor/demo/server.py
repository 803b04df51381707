"""The demonstration model's process: llama.cpp's HTTP server on the loopback, for as long as its parent lives.

A script, run by path with the private folder on PYTHONPATH; it imports nothing of this project. It prints its address,
alone on standard output, when it is ready. The parent's end is seen as the end of standard input, which the operating
system closes however the parent ended.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path
from typing import Any


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", help="the GGUF file")
    parser.add_argument("template", help="the chat template")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--context", type=int, default=8192, help="tokens")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def _parameters(arguments: argparse.Namespace, xllamacpp: Any) -> Any:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = arguments.model
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = arguments.port
    parameters.n_ctx = arguments.context
    parameters.n_parallel = 1  # more would split the context
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = arguments.threads
    parameters.n_gpu_layers = 0
    parameters.cache_ram_mib = 256
    parameters.chat_template = Path(arguments.template).read_text("utf-8")
    return parameters


def main() -> None:
    """Serves until standard input ends."""
    arguments = _arguments()
    answer = os.dup(1)
    os.dup2(2, 1)  # whatever the library prints goes to the log
    xllamacpp = importlib.import_module("xllamacpp")  # from the private folder

    server = xllamacpp.Server(_parameters(arguments, xllamacpp))
    os.write(answer, f"{server.listening_address}\n".encode())
    os.close(answer)
    while sys.stdin.buffer.read(4096):
        pass
    os._exit(0)  # the library's own threads would keep the process alive


if __name__ == "__main__":
    main()
