"""The scores of a run: kept in its folder, and drawn for its report."""
