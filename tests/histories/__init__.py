"""Histories of callers at once, and whether an order of their calls explains every answer."""
