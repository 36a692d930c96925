# SPDX-License-Identifier: Apache-2.0
"""E38: a cold profile shows 10 ms of NCCL for 30 us of transfer: why?"""
