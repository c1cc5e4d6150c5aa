"""Constitutional AI: a model criticises, revises and judges its answers by principles."""
