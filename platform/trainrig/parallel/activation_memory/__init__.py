"""What layers keep for the backward pass, and ways to keep less of it on a device."""
