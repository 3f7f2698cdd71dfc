"""Tables as outputs: what a batch asks for, and the process that writes it."""
