"""The quickstart's web archives: pages made from the local Python installation."""
