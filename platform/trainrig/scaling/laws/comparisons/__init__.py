"""Laws held against one another: of corpora, and of objectives."""
