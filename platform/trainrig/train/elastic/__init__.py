"""Elastic training on Ray: attempts supervised, worker groups, agents, messages."""
