"""The Ray that stages run on: started or joined, its nodes and pools, its loss."""
