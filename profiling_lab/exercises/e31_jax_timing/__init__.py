# SPDX-License-Identifier: Apache-2.0
"""E31: a step of JAX takes a millisecond, says the program. Where is the rest of the time?"""
