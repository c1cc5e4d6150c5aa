"""The report of the quickstart: collected results, and the HTML page that shows them."""
