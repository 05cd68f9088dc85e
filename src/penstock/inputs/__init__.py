"""Files of the user, read through one door."""
