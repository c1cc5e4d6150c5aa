"""Clusters brought up, looked at and taken down by their files, with nothing left behind.

machine.py       what may cost money or hold a port, and when it ought to be gone
kinds.py         whose machines a file asks for: one of the next four
ec2.py           instances, spot requests and volumes of an AWS account
compute.py       instances of a Google Cloud project
kubernetes.py    what KubeRay made
processes.py     Ray's processes on this machine
ray_launcher.py  Ray's own launcher, with a deadline [Ray]
stamp.py         what a file says when it is brought up: the time that its machines expire
mounts.py        files that Ray's launcher is to bring along, looked at before anything is rented
runs.py          what is live on a cluster, by every home that may hold its record
up.py  status.py  down.py  leaks.py    the verbs
"""
