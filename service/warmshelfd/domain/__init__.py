"""The rules of the shelf, pure: no I/O, clock, threads or gRPC."""
