"""The report kit: page rendering from templates, plots as data, number formats."""
