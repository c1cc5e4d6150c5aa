"""Parts of trainrig that its core does without: `trainrig.extras` loads them by name when needed.

cluster_check/      mistakes, cost and quotas in cluster files (`trainrig cluster check`)
"""
