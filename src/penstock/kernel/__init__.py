"""The fast simulator: numbers and arrays only, no import of the rest of Penstock but the input
error.
"""
