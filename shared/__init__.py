"""What every process agrees on: contracts, the lifecycle table, and one class per outside thing."""
