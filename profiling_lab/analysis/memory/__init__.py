# SPDX-License-Identifier: Apache-2.0
"""Why the GPU was idle."""
