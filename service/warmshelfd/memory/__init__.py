"""The arena: segments on a memory file system, and the budget that bounds them."""
