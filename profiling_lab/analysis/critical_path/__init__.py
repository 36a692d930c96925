# SPDX-License-Identifier: Apache-2.0
"""What sets the length of a step, and what a change would win."""
