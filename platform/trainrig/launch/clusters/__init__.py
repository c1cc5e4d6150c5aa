"""Clusters that are brought up, inspected and taken down by their files.

cluster_kinds.py      which of the four providers a file needs
machine_providers.py  machines and their providers; Compute Engine and Kubernetes
ec2_machines.py       instances, spot requests and volumes of an AWS account
local_processes.py    Ray's processes on this machine
head_start.py         start of a head on this machine, and by Ray's own launcher [Ray]
cluster_up.py  cluster_status.py  cluster_down.py    the verbs
"""
