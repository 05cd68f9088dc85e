"""How much a server can carry, and with which scheduler and limits."""
