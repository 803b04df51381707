"""An MCP server made with the SDK: over standard streams, or with a port as argument over HTTP on loopback.

Over HTTP it wants the header `Authorization: Bearer VALUE` where MCP_TOKEN holds a value.
"""

import base64
import os
import sys

from mcp.server.mcpserver import MCPServer
from mcp_types import (
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)

PIXEL = base64.b64encode(b"\x89PNG pixel").decode()
REPORT = BlobResourceContents(uri="memo://x/report.pdf", blob=PIXEL, mime_type="application/pdf")

server = MCPServer("sdk")


@server.tool(annotations=ToolAnnotations(read_only_hint=True, destructive_hint=True))
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
def stations(line: str) -> dict[str, list[str]]:
    """The stations of a line."""
    return {line: ["A", "B"]}


@server.tool()
def names() -> list[str]:
    """Some names."""
    return ["a", "b"]


@server.tool()
def picture() -> CallToolResult:
    """A picture, and what is to be said of it."""
    image = ImageContent(type="image", data=PIXEL, mime_type="image/png")
    return CallToolResult(content=[TextContent(type="text", text="A red pixel."), image, image])


@server.tool()
def files() -> CallToolResult:
    """Resources of all kinds."""
    return CallToolResult(
        content=[
            ResourceLink(type="resource_link", name="far", uri="https://a.test/far"),
            EmbeddedResource(type="resource", resource=TextResourceContents(uri="memo://note", text="a note")),
            EmbeddedResource(type="resource", resource=REPORT),
            ImageContent(type="image", data="no base64!", mime_type="image/png"),
        ]
    )  # fmt: skip


@server.tool()
def nothing() -> None:
    """Does nothing."""


@server.tool()
def stop() -> str:
    """Ends the server at once."""
    os._exit(3)


def guarded(app):
    """The same application behind a token, where one is set."""
    token = os.environ.get("MCP_TOKEN")

    async def call(scope, receive, send):
        given = dict(scope.get("headers") or ()).get(b"authorization", b"").decode()
        if scope["type"] == "http" and token and given != f"Bearer {token}":
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": f"wrong token {given}".encode()})
            return
        await app(scope, receive, send)

    return call


if __name__ == "__main__":
    if len(sys.argv) > 1:
        import uvicorn

        uvicorn.run(guarded(server.streamable_http_app()), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
    else:
        server.run()
