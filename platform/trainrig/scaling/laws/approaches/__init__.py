"""The optimum by each published approach: envelope, isoFLOP, parametric, Kaplan."""
