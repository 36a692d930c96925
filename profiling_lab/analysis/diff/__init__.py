# SPDX-License-Identifier: Apache-2.0
"""Did a change help? Recordings from before and after it, compared."""
