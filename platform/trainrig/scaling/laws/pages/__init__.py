"""`report.html` of a fitted law and of a plan: pure functions of what was found."""
