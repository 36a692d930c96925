# SPDX-License-Identifier: Apache-2.0
"""What the host did: calls, waits, and the GPU's idle time behind them."""
