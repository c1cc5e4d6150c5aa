"""Parts of trainrig that its core does without: `trainrig.extras` loads them by name when needed.

cluster_check/      mistakes, cost and quotas in cluster files (`trainrig cluster check`)
datatrove_signals/  columns equal to those of datatrove's filters (`words = "datatrove"`)
spot_rehearsal/     a run under a trace of node losses, on this machine
"""
