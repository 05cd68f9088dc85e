"""The specification of the simulator, transcribed literally and slowly."""
