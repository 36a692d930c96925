# SPDX-License-Identifier: Apache-2.0
"""E34: why are so few warps resident, and does it matter?"""
