"""The quickstart: every stage on one machine, on pages made from its Python installation."""
