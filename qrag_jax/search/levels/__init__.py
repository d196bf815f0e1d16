"""Search among nodes of all levels, and the planners that choose the levels."""
