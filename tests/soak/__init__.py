"""A week of a fleet's life in two hours: load, deaths, outages and renewals, and whether anything grows meanwhile."""
