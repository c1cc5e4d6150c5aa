"""Laws of task scores: compute predicts the loss of right answers, which predicts the score."""
