"""Programs of strangers, run where they can do nothing but compute."""
