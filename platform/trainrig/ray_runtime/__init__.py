"""The Ray cluster that stages run on: start, join, capacity, autoscaling and loss detection."""
