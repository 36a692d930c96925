# SPDX-License-Identifier: Apache-2.0
"""Tables that our recorder alone writes: counted work, sampled counters, energy."""
