"""HTML reports of evaluations: one scorecard, a comparison, and a leaderboard."""
