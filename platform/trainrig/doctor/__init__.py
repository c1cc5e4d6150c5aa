"""Checks of a machine and its software before the first run: the command `trainrig doctor`.

No check starts Ray. torch is imported only where there are GPUs, in a process that ends with the
check.
"""
