# SPDX-License-Identifier: Apache-2.0
"""The tables of the command line as tools of the Model Context Protocol, for `profiling-lab mcp`."""
