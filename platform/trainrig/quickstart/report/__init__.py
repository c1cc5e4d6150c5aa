"""The report of the quickstart: results collected, and the page of them."""
