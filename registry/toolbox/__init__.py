"""The tools that come along. Each is made by a function, so that nothing is read or opened before it is wanted."""

from __future__ import annotations

import os
from collections.abc import Iterable

from registry.toolbox.calculate import calculate_tool
from registry.toolbox.current_time import current_time_tool
from registry.toolbox.files import workspace_tools
from registry.toolbox.web_fetch import web_fetch_tool
from registry.tools import ToolRegistry

__all__ = ["calculate_tool", "current_time_tool", "default_tools", "web_fetch_tool", "workspace_tools"]


def default_tools(workspace: str | os.PathLike[str] | None = None, allow: Iterable[str] = ()) -> ToolRegistry:
    """`calculate`, `current_time`, `web_fetch`, and with a workspace folder `read_file`, `list_files`, `write_file`.

    `allow`: `host:port` of sites that `web_fetch` may reach at private addresses.
    """
    tools = [calculate_tool(), current_time_tool(), web_fetch_tool(allow)]
    if workspace is not None:
        tools += workspace_tools(workspace)
    return ToolRegistry(tools)
