"""The client's part."""
