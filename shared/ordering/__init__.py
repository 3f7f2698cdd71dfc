"""The policy of the fleet: what runs next, in front of a lane and in front of an engine.

`line.Line` is the order, and the other modules are what it looks at. Time, rates and lengths are
arguments, so that the dispatcher, an engine's replica and the simulator run the same code. Pure.
"""
