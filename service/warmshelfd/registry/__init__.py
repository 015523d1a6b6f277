"""Where registrations are kept."""
