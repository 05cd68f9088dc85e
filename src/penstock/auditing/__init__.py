"""What a recorded run did, worked out again from its allocations."""
