"""What tests share: imported as `support`, never by the package."""
