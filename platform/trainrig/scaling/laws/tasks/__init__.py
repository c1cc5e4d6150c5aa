"""Laws of what tasks score: from compute to the loss of right answers, from that to the score."""
