"""An MCP server of the older protocol (2025-06-18) over standard streams, by hand and quick to start.

The first argument says how it starts: normal, garbage (noise before and between), silent, exit. Its tools do what their
names say. It notes each start, and each call, as a line of the file in MCP_NOTES.
"""

import json
import os
import sys
import time

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
CLAIMS = {"readOnlyHint": True, "idempotentHint": True}
NAMES = ("echo", "die", "hang", "slow", "refuse", "closed_code", "garbage", "wrong_shape", "environment", "fail")
PAGES = [
    [{"name": name, "description": f"What {name} does.\nSecond line.", "inputSchema": SCHEMA} for name in NAMES],
    [
        {"name": "odd.name/x", "title": "An odd name", "inputSchema": {"type": "object"}},
        {"name": "mute", "inputSchema": {"type": "object"}, "annotations": CLAIMS},
        {"name": "echo", "description": "A second of that name.", "inputSchema": SCHEMA},
        {"name": "calculate", "description": "The name of a built-in tool.", "inputSchema": SCHEMA},
    ],
]  # fmt: skip


def note(text: str) -> None:
    if path := os.environ.get("MCP_NOTES"):
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{text}\n")


def say(message: object) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message} if isinstance(message, dict) else message), flush=True)


def text(value: str, **more: object) -> dict:
    return {"content": [{"type": "text", "text": value}], **more}


def called(name: str, arguments: dict, request: object) -> dict | None:
    """The result of a call; None where nothing is to be answered."""
    note(f"call {name}")
    match name:
        case "echo" | "odd.name/x" | "mute" | "calculate":
            return text(arguments.get("text", "") or "empty")
        case "die":
            print("last words: out of memory", file=sys.stderr, flush=True)
            os._exit(3)
        case "hang":
            return None
        case "slow":
            time.sleep(0.6)
            return text("late")
        case "garbage":
            print("this is no JSON\n[1, 2\n\x00\xff", flush=True)
            return text("after the noise")
        case "wrong_shape":
            return {"content": "not a list"}
        case "environment":
            return text(json.dumps(dict(os.environ)))
        case "fail":
            return text(f"it failed: {arguments.get('text')}", isError=True)
    code = -32000 if name == "closed_code" else -32602
    say({"id": request, "error": {"code": code, "message": f"no {name} today"}})
    return None


def serve(start: str) -> None:
    note("start")
    if start == "exit":
        print("no licence found", file=sys.stderr, flush=True)
        os._exit(3)
    for line in sys.stdin:
        if start == "silent":
            continue
        message = json.loads(line)
        if start == "garbage":
            print("Welcome!\n{}\n[]\n\n", flush=True)
        method, params, request = message.get("method"), message.get("params") or {}, message.get("id")
        if request is None:
            continue
        if method == "initialize":
            info = {"name": "plain", "version": "1"}
            version = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
            say({"id": request, "result": version})
        elif method == "tools/list":
            page = int(params.get("cursor", 0))
            more = {} if page + 1 == len(PAGES) else {"nextCursor": str(page + 1)}
            say({"id": request, "result": {"tools": PAGES[page], **more}})
        elif method == "tools/call":
            result = called(params["name"], params.get("arguments") or {}, request)
            if result is not None:
                say({"id": request, "result": result})
        else:
            say({"id": request, "error": {"code": -32601, "message": "Method not found"}})


if __name__ == "__main__":
    serve(sys.argv[1] if len(sys.argv) > 1 else "normal")
