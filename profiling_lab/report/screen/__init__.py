# SPDX-License-Identifier: Apache-2.0
"""Tables and texts on a terminal: its width, colours and encoding."""
