"""A daemon that is killed at every step, again and again, while workers use it."""
