"""What to deploy: the least fleet that meets targets, its day, and finite jobs."""
