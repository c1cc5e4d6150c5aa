"""Elastic training on Ray: supervised attempts, worker groups, worker agents and messages."""
