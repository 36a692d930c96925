# SPDX-License-Identifier: Apache-2.0
"""How far each line is from what the GPU could do."""
