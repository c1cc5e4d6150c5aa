"""From files of many formats to pages."""
