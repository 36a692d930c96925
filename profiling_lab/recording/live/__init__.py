# SPDX-License-Identifier: Apache-2.0
"""Windows in a job that runs: it listens on a private socket, and `profiling-lab attach` asks for one."""
