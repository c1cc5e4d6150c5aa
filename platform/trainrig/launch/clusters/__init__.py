"""Clusters that are brought up, inspected and taken down by their files.

kinds.py         which of the four providers below a file needs
providers/       lists and ends the machines of a cluster
  machine.py           what may cost money or hold a port, and when it expires
  ec2.py               instances, spot requests and volumes of an AWS account
  compute_engine.py    instances of a Google Cloud project
  kubernetes.py        objects and pods made by KubeRay
  local_processes.py   Ray's processes on this machine
ray_launcher.py  Ray's own launcher, with a deadline [Ray]
local_head.py    head of a cluster on this machine
stamp.py         expiry times and labels that are added to a file at `cluster up`
mounts.py        check of the files that Ray's launcher copies to the head
runs.py          live runs on a cluster, from every home that may hold their records
token.py         token of this user's clusters
up.py  status.py  down.py  leaks.py    the verbs
"""
