# SPDX-License-Identifier: Apache-2.0
"""Serves the tools on standard input and output, with the protocol's own package."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from profiling_lab.errors import LabError
from profiling_lab.mcp.tools import INSTRUCTIONS, Tools


def server(tools: Tools) -> MCPServer[Any]:
    found: MCPServer[Any] = MCPServer(
        "profiling-lab",
        instructions=INSTRUCTIONS,
        log_level="ERROR",
    )
    hints = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
    for tool in tools.all():
        found.add_tool(_with_our_errors(tool), annotations=hints, structured_output=False)
    return found


def _with_our_errors(tool: Callable[..., str]) -> Callable[..., str]:
    """Our errors are sentences for whoever asked. Any other is a defect, whose text stays in our log."""

    @wraps(tool)
    def answered(*args: Any, **kwargs: Any) -> str:
        try:
            return tool(*args, **kwargs)
        except LabError as error:
            raise ToolError(str(error)) from None

    return answered
