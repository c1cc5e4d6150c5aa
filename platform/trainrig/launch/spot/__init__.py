"""Machines that a cloud lends and takes back: told in time, a run moves and loses nothing."""
