"""What a run takes: FLOPs, memory, hours, money, on which devices."""
