"""What a curation did, told: tables beside the documents, and the page that shows them."""
