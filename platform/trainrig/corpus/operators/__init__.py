"""Steps of curation as operators on Arrow tables, for `curate` and for pipelines on Ray Data."""
