"""A user's own model, fitted over all devices."""
