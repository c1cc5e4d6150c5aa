"""Processes of one machine and of several: forked, listened to, leased, logged."""
