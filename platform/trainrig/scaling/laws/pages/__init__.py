"""Report pages (`report.html`) of fitted laws and of comparisons of objectives."""
