"""Reports of a curation: tables beside the documents, and the HTML page."""
