# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab mcp`: serve the tables of recordings as tools of the Model Context Protocol."""

from __future__ import annotations

import argparse

from profiling_lab.cli import _trace_arguments as shared

HELP = "serve the recordings of a folder to a client of the Model Context Protocol, read-only"
EXAMPLES = """\
  profiling-lab mcp --root runs             on standard input and output, as a client starts it
  profiling-lab mcp --root runs --own app   as `lines --own app`

In the configuration of a client:
  {"mcpServers": {"profiling-lab": {"command": "profiling-lab", "args": ["mcp", "--root", "/data/runs"]}}}

The tools have the names of the commands: check, lines, kernels, steps, gaps, diff, ranks, ... Each answer
keeps to about as many tokens as the client asks for (`tokens`), and says what was left out. Only files in the
root folder can be read; nothing is written or executed. It needs pip install 'profiling-lab[mcp]'.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--root",
        metavar="FOLDER",
        default=".",
        help="the folder whose recordings may be read (default: the working folder)",
    )
    shared.add_own(parser)


def run(args: argparse.Namespace) -> int:
    from profiling_lab.errors import UsageError
    from profiling_lab.mcp.root import Root

    root = Root(args.root)
    try:
        from profiling_lab.mcp.server import server
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "mcp":
            raise
        raise UsageError(
            "the protocol is spoken by the package mcp from version 2 on, which is not installed: "
            "pip install 'profiling-lab[mcp]'"
        ) from None
    from profiling_lab.mcp.tools import Tools

    server(Tools(root, tuple(args.own))).run("stdio")
    return 0
