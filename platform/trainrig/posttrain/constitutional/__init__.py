"""Constitutional AI: a model's answers, criticised and revised by principles, and judged."""
