"""What holds for cluster files of AWS, of Google Cloud and of one laptop."""
