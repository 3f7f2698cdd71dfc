"""What a batch's input may be: its lines, and what is wrong with them. Does no I/O."""
