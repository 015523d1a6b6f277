"""The gRPC surface: decode, call the shelf, encode."""
