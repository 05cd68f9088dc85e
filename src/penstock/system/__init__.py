"""What serves."""
