"""`batchyard doctor`: what is wrong with a fleet, and what to do about it."""

from cli.doctor.command import run as run
