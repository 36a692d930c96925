# SPDX-License-Identifier: Apache-2.0
"""E26: why is the GPU idle although nothing waits?"""
