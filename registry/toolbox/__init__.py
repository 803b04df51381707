"""The tools that come along. Each is made by a function, so that nothing is read or opened before it is wanted."""

from __future__ import annotations

import os
from collections.abc import Iterable

from registry.toolbox.calculate import calculate_tool
from registry.toolbox.current_time import current_time_tool
from registry.toolbox.files import workspace_tools
from registry.toolbox.run_python import run_python_tool
from registry.toolbox.web_fetch import web_fetch_tool
from registry.toolbox.web_search import SearchProvider, search_provider, web_search_tool
from registry.tools import ToolRegistry

__all__ = [
    "calculate_tool",
    "current_time_tool",
    "default_tools",
    "run_python_tool",
    "search_provider",
    "web_fetch_tool",
    "web_search_tool",
    "workspace_tools",
]


def default_tools(
    workspace: str | os.PathLike[str] | None = None,
    allow: Iterable[str] = (),
    *,
    search: SearchProvider | None = None,
) -> ToolRegistry:
    """`calculate`, `current_time`, `run_python`, `web_fetch`; with a search service `web_search`, with a workspace
    folder `read_file`, `list_files`, `write_file`.

    `allow`: `host:port` of sites that `web_fetch` may reach at private addresses. `search`: see `search_provider`.
    """
    tools = [calculate_tool(), current_time_tool(), run_python_tool(), web_fetch_tool(allow)]
    if search is not None:
        tools.append(web_search_tool(search))
    if workspace is not None:
        tools += workspace_tools(workspace)
    return ToolRegistry(tools)
