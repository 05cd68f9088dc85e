"""The public traces worth knowing, and how to fetch them."""
