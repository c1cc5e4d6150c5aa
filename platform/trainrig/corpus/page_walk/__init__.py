"""Walk over the tree of a page: from its HTML to the text of its blocks, in compiled code."""
