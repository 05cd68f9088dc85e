"""What mathematics says. Never imports the simulator."""
