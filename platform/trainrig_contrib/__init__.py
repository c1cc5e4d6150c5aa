"""Parts of trainrig that its core does without: `trainrig.extras` loads them by name when needed.

cluster_check/      mistakes, cost and quotas in cluster files (`trainrig cluster check`)
datatrove_signals/  the columns of datatrove's filters, with equal values (`words = "datatrove"`)
spot_rehearsal/     a run under a trace of node losses, on this machine
"""
