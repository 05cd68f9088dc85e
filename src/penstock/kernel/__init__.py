"""The fast simulator: numbers and arrays only, no import of the rest of Penstock but the input error."""

from penstock import compiled_code as compiled_code  # before the first function is compiled
