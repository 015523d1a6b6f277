"""What bytes mean."""
