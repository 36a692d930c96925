# SPDX-License-Identifier: Apache-2.0
"""E19: reports of `nsys stats` on the command line, and a gate for CI."""
